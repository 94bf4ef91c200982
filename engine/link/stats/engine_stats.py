"""The counters of an engine, which it sends to gateways in `StatsReply`."""

from __future__ import annotations

import msgspec

from engine.link.stats.flow_stats import EvictionStats, FlowShares, FlowStats, PinStats
from engine.link.stats.gap_stats import GapStats
from engine.link.stats.tier_stats import PoolStats, StateStats, TierStats


class WindowStats(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of prompt tokens looked up, found, fetched and computed in a period of time."""

    queried_tokens: int
    hit_tokens: int
    fetched_tokens: int = 0  # tokens fetched from other engines; hits do not include them
    computed_tokens: int


class FetchStats(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks fetched from other engines over one transport since the engine started."""

    fetches: int = 0  # requests for blocks that were sent
    failed: int = 0  # fetches that ended before all available blocks had arrived
    blocks: int = 0  # blocks that arrived, were verified and were cached
    bytes: int = 0
    seconds: float = 0.0  # seconds with at least one fetch under way; `bytes / seconds` is the rate


class ExchangeStats(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks exchanged with other engines, by transport: "socket", "tcp", "device"."""

    fetched: dict[str, FetchStats] = {}
    refused: int = 0  # fetches not started, because computing was predicted to be faster
    sent_blocks: int = 0
    sent_bytes: int = 0


class DraftStats(msgspec.Struct, frozen=True, kw_only=True):
    """The verified drafts of one source, and their tokens, since the engine started.

    A row that verifies a draft yields one token more than it accepts.
    """

    drafts: int = 0  # number of verified drafts; a row of a step has at most one
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def since(self, before: DraftStats | None) -> DraftStats:
        """Return these counters minus `before`, if given."""
        if before is None:
            return self
        return DraftStats(
            drafts=self.drafts - before.drafts,
            drafted_tokens=self.drafted_tokens - before.drafted_tokens,
            accepted_tokens=self.accepted_tokens - before.accepted_tokens,
        )


class SentinelStats(msgspec.Struct, frozen=True, kw_only=True):
    """The checks of cached answers by recomputation, and damaged blocks, since the start."""

    checked: int = 0
    tokens: int = 0  # number of compared tokens
    differed: int = 0  # answers that differed by more than rounding explains
    # Chosen answers that were not checked, for lack of time or room, or after a flush.
    dropped: int = 0
    largest: float = 0.0  # largest difference, as a multiple of the allowed rounding error
    damaged_blocks: int = 0  # blocks that changed while they were in host memory

    def __add__(self, other: SentinelStats) -> SentinelStats:
        return SentinelStats(
            checked=self.checked + other.checked,
            tokens=self.tokens + other.tokens,
            differed=self.differed + other.differed,
            dropped=self.dropped + other.dropped,
            largest=max(self.largest, other.largest),
            damaged_blocks=self.damaged_blocks + other.damaged_blocks,
        )


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's counters at one point in time."""

    engine_id: str
    fingerprint: bytes
    uptime_s: float
    running: int
    waiting: int
    preemptions: int
    steps: int
    generated_tokens: int
    windows: dict[str, WindowStats]  # by period: "1m", "10m", "all"
    pool: PoolStats
    tree_nodes: int
    tree_depth: int
    flows: dict[str, FlowStats]
    loading: int = 0  # sequences whose prefix is being loaded from a lower tier
    failed_loads: int = 0  # sequences that were restarted after a failed load
    dropped_frames: int = 0  # messages to the engine that could not be decoded
    tiers: TierStats = TierStats()
    shares: dict[str, FlowShares] = {}
    # Tier -> factor by which guaranteed shares are reduced so that all fit.
    floors_scale: dict[str, float] = {}
    evictions: list[EvictionStats] = []  # the newest evictions between flows, newest first
    pins: PinStats = PinStats()
    exchange: ExchangeStats = ExchangeStats()
    drafts: dict[str, DraftStats] = {}
    states: StateStats = StateStats()
    sentinel: SentinelStats = SentinelStats()
    gaps: GapStats = GapStats()
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
