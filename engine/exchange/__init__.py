"""Exchange of blocks between engines: one asks for a prompt's prefix, the other sends its blocks.

`Exchange` is the interface. Two threads beside the owner's have the sockets and move the bytes:
those of `BlockClient` and `BlockServer`. The owner decides what is fetched rather than
computed (`fetches.py`, by `rates.py`), and what may be sent (`source.py`).
"""
