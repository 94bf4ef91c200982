"""Exchange of blocks between engines: one asks for a prompt's prefix, another sends the blocks.

`Exchange` is the interface. The threads of `BlockClient` and `BlockServer` own the sockets and move
the bytes. The owner thread decides which blocks are fetched rather than computed (`fetches.py`, by
`rates.py`), and which may be sent (`source.py`).
"""
