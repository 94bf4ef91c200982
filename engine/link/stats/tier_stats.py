"""The counters of tiers: blocks, recurrent states, copies, the disk, and tokens found by tier."""

from __future__ import annotations

from typing import Literal

import msgspec

StateTier = Literal["host", "disk"]  # tiers from which a recurrent state may be loaded


class TierTokens(msgspec.Struct, frozen=True, array_like=True):
    """The cached tokens of a prompt by tier. Their sum is the prompt's `cached_tokens`.

    Tokens that are being loaded to the device for another sequence already count as `device`.
    """

    device: int = 0
    host: int = 0
    disk: int = 0

    @property
    def total(self) -> int:
        """The number of tokens that were not computed."""
        return self.device + self.host + self.disk

    def __add__(self, other: TierTokens) -> TierTokens:
        return TierTokens(
            self.device + other.device, self.host + other.host, self.disk + other.disk
        )


class PoolStats(msgspec.Struct, frozen=True, kw_only=True):
    """The use of the device pool, in blocks. Used blocks are either evictable or leased."""

    block_size: int
    total: int
    free: int
    used: int
    evictable: int
    leased: int


class DirectionStats(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks copied from one tier to another since the engine started."""

    source: str
    target: str
    blocks: int
    failed: int
    seconds: float  # seconds with at least one copy under way
    under_way: int


class LowerTierStats(msgspec.Struct, frozen=True, kw_only=True):
    """The use of a tier below the device, in blocks."""

    total: int
    used: int
    loads_chosen: int  # blocks that requests found in this tier and loaded
    loads_refused: int  # blocks that requests found in this tier but computed instead


class DiskStats(msgspec.Struct, frozen=True, kw_only=True):
    """The state and counters of the disk tier's file and process."""

    state: str  # "up", "starting", "down" or "off"
    bytes: int
    records: int
    lost: int  # reads that did not find the requested record
    refused: int  # writes refused because the file was full or its disk had no space
    late: int  # reads that missed their deadline
    quarantines: int
    failures: int  # deaths of the disk tier's process
    # True: nothing is written, because the file system has too little space.
    disk_full: bool = False
    given_up: int = 0  # how often the file was removed to free disk space


class TierStats(msgspec.Struct, frozen=True, kw_only=True):
    """The use of the lower tiers, and copies between tiers, since the engine started."""

    block_bytes: int = 0
    found: TierTokens = TierTokens()  # number of prompt tokens that requests found, by tier
    lower: dict[str, LowerTierStats] = {}
    ways: list[DirectionStats] = []  # an entry for each pair of tiers with copies
    evictions: dict[str, dict[str, int]] = {}  # numbers of evicted blocks, by tier and reason
    # Prefill speed in tokens per second, by context length in tokens.
    prefill: dict[int, float] = {}
    disk: DiskStats | None = None


class LowerStates(msgspec.Struct, frozen=True, kw_only=True):
    """The number of checkpoints of recurrent states in one tier below the device."""

    total: int
    used: int


class StateStats(msgspec.Struct, frozen=True, kw_only=True):
    """The state slots of a model with recurrent layers, and the state checkpoints in the tree.

    A slot on the device holds a checkpoint or the state of a running sequence, or is free. All
    counters are 0 without recurrent layers.
    """

    total: int = 0
    free: int = 0
    checkpoints: int = 0
    # The counts since the start: checkpoints made, requests that started from a checkpoint,
    # evicted checkpoints, and checkpoints not made because no slot was free.
    made: int = 0
    hits: int = 0
    cut_tokens: int = 0  # cached tokens that were recomputed because no recurrent state was cached
    evicted: int = 0
    refused: int = 0
    # The counts of checkpoints copied to a lower tier, checkpoints loaded to the device, and failed
    # copies.
    copied_down: int = 0
    loaded: int = 0
    failed: int = 0
    lower: dict[str, LowerStates] = {}
