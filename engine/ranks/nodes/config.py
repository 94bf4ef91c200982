"""The settings of a node's process, composed by the command line and passed whole to it."""

from __future__ import annotations

import msgspec


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What is this machine's own; all else comes from rank 0."""

    join: str  # tcp://host:port of rank 0's machine
    node_rank: int  # among the machines, from 1 on
    host: str | None  # by which the others reach this one; None: by which rank 0's is reached
    key_file: str
    model_dir: str
    disk_cache_dir: str | None  # None: no disk tier
    silence_s: float = 10.0  # of rank 0's machine, after which it counts as gone
