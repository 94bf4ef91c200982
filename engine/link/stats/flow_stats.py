"""The counters of flows: their use of the cache, their shares of tiers, and their evictions."""

from __future__ import annotations

import msgspec


class FlowStats(msgspec.Struct, kw_only=True):
    """A flow's use of the cache since the engine started, in tokens and blocks."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    blocks_held: int = 0
    evictions_caused: int = 0
    evictions_suffered: int = 0
    written_blocks: int = 0
    unread_blocks: int = 0  # blocks that were written but never read by a request, evicted or not
    # blocks of marked prefixes whose retention has not ended, in any tier, by the last survey
    retained_blocks: int = 0


BlocksByReason = dict[str, dict[str, int]]
"""Numbers of blocks, by tier and reason."""


class ShareStats(msgspec.Struct, frozen=True, kw_only=True):
    """A flow's usage and quota in one tier, in blocks."""

    held: int
    # Guaranteed blocks; less than the quota's minimum if the minimums of all flows do not fit.
    floor: int
    ceiling: int
    fair: float  # fair share in case every flow needs more


class FlowShares(msgspec.Struct, frozen=True, kw_only=True):
    """A flow's share of each tier, its evicted blocks, and the blocks evicted for the flow."""

    tiers: dict[str, ShareStats] = {}
    caused: BlocksByReason = {}
    suffered: BlocksByReason = {}


class EvictionStats(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of one flow that were evicted for another flow."""

    age_s: float
    of_flow: str
    for_flow: str
    tier: str
    reason: str
    blocks: int


class PinStats(msgspec.Struct, frozen=True, kw_only=True):
    """The pinned prefixes, in blocks."""

    most: int = 0
    claimed: int = 0  # blocks that are pinned now or will be when computed
    pinned: dict[str, int] = {}
