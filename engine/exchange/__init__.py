"""Blocks that go between engines: one asks for the beginning of a prompt, the other sends them.

`Exchange` is the door. Two threads beside the owner's have the sockets and move the bytes: one asks
(`asking`), one answers (`answering`). What is fetched, and what may be sent, the owner decides.
"""
