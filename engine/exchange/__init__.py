"""Exchange of blocks between engines: one asks for a prompt's prefix, another sends the blocks.

`Exchange` is the interface. The threads of `BlockClient` and `BlockServer` own the sockets and move
the bytes. The owner thread decides which blocks are fetched rather than computed (room
`fetching`), and which may be sent (room `serving`).
"""
