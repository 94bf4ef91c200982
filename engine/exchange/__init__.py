"""Blocks that go between engines: one asks for the beginning of a prompt, the other sends them.

`Exchange` is the interface. Two threads beside the owner's have the sockets and move the bytes:
those of `BlockClient` and `BlockServer`. The owner decides what is fetched rather than
computed (`fetches.py`, by `rates.py`), and what may be sent (`source.py`).
"""
