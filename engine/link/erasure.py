"""The reports of the KV blocks that a flush of one flow has erased in an engine.

A flush is over once the flow's records on disk are unreadable, and no copy or sequence of the flow
runs. Until then the gateway sends the same flush again to get a new report.
"""

from __future__ import annotations

from typing import Literal

import msgspec

DiskErasure = Literal["none", "under way", "records erased", "key destroyed"]


class TierErasure(msgspec.Struct, frozen=True, kw_only=True):
    """The copies that were erased from one tier. `num_bytes` is their size on all ranks."""

    tier: str  # device, host or disk
    blocks: int
    states: int = 0
    num_bytes: int = 0


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a flow's flush in one engine.

    Memory of the device and the host is freed, not cleared. Later blocks overwrite the memory.
    """

    tiers: tuple[TierErasure, ...] | None  # None: erased before this engine's start
    running: int  # sequences of the flow that still run, and leave nothing in the cache
    disk: DiskErasure

    @property
    def is_over(self) -> bool:
        """True if nothing of the flow can be read any more."""
        return not self.running and self.disk != "under way"
