"""Blocks that go between engines: one asks for the begin of a prompt, another sends what it has.

`Exchange` is the door. Two threads beside the owner's have the sockets and move the bytes: one asks
(`asking`), one answers (`answering`). What is fetched, and what may be sent, the owner decides.
"""
