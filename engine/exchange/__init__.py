"""The exchange of KV blocks between engines: one engine fetches a prompt's prefix from another.

`Exchange` is the interface. The threads of `BlockClient` and `BlockServer` own the sockets and move
the bytes. The owner thread decides which blocks are fetched (`fetching`), and which may be sent
(`serving`).
"""
