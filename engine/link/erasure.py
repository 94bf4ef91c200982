"""The report of the KV blocks that the flush of a flow has erased in one engine.

A flush is complete when the flow's records on disk are unreadable, and no copy and no sequence of
the flow is running. Until then the gateway repeats the flush to get a new report.
"""

from __future__ import annotations

from typing import Literal

import msgspec

DiskErasure = Literal["none", "under way", "records erased", "key destroyed"]


class TierErasure(msgspec.Struct, frozen=True, kw_only=True):
    """The copies that were erased from one tier. `num_bytes` is their size on all ranks."""

    tier: str  # "device", "host" or "disk"
    blocks: int
    states: int = 0
    num_bytes: int = 0


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a flow's flush in one engine.

    Device and host memory is freed but not zeroed. Later blocks overwrite it.
    """

    tiers: tuple[TierErasure, ...] | None  # None: the blocks were erased before this engine started
    running: int  # number of the flow's running sequences, which will leave nothing in the cache
    disk: DiskErasure

    @property
    def is_over(self) -> bool:
        """True if none of the flow's cached data can be read any more."""
        return not self.running and self.disk != "under way"
