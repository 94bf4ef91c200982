"""The counters of an engine, in a gateway's `StatsReply`."""

from __future__ import annotations

from typing import Literal

import msgspec

StateTier = Literal["host", "disk"]  # tiers from which a recurrent state may be loaded
MOST_LATE_GAPS = 0.01  # share of late gaps up to which a target counts as met


class TierTokens(msgspec.Struct, frozen=True, array_like=True):
    """The cached tokens of a prompt by their tier, which add up to its `cached_tokens`.

    Tokens that are being loaded for another sequence already count as `device`.
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
    unread_blocks: int = 0  # written blocks that no request has found yet, evicted or not
    retained_blocks: int = 0  # blocks of marked prefixes whose retention has not ended, in any tier


class WindowStats(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt tokens looked up, found, fetched and computed within a window of time."""

    queried_tokens: int
    hit_tokens: int
    fetched_tokens: int = 0  # tokens from other engines; not included in hits
    computed_tokens: int


class PoolStats(msgspec.Struct, frozen=True, kw_only=True):
    """The device pool, in blocks. The used blocks are evictable or leased."""

    block_size: int
    total: int
    free: int
    used: int
    evictable: int
    leased: int


class DirectionStats(msgspec.Struct, frozen=True, kw_only=True):
    """The copies from one tier to another since the start, in blocks."""

    source: str
    target: str
    blocks: int
    failed: int
    seconds: float  # seconds with at least one copy under way
    under_way: int


class LowerTierStats(msgspec.Struct, frozen=True, kw_only=True):
    """A tier below the device, in blocks."""

    total: int
    used: int
    loads_chosen: int  # blocks that requests found in this tier and loaded
    loads_refused: int  # blocks that requests found in this tier, but computed instead


class DiskStats(msgspec.Struct, frozen=True, kw_only=True):
    """The disk tier's file and process."""

    state: str  # up, starting, down or off
    bytes: int
    records: int
    lost: int  # reads that found no record, or another record than requested
    refused: int  # writes refused because the file was full or its disk had no space
    late: int  # reads that missed their deadline
    quarantines: int
    failures: int  # deaths of the disk tier's process
    disk_full: bool = False  # no writes: the file system has too little space
    given_up: int = 0  # times the file was removed to free space on the disk


class TierStats(msgspec.Struct, frozen=True, kw_only=True):
    """The use of the lower tiers, and copies between tiers, since the engine started."""

    block_bytes: int = 0
    found: TierTokens = TierTokens()  # prompt tokens that requests found, by tier
    lower: dict[str, LowerTierStats] = {}
    ways: list[DirectionStats] = []  # an entry for each pair of tiers with copies
    evictions: dict[str, dict[str, int]] = {}  # blocks by tier and reason
    prefill: dict[int, float] = {}  # prefilled tokens per second, by tokens of context
    disk: DiskStats | None = None


class FetchStats(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks fetched from other engines over one transport, since the start."""

    fetches: int = 0  # sent requests for blocks
    failed: int = 0  # fetches that ended before all available blocks had come
    blocks: int = 0  # blocks that came, were verified and are cached
    bytes: int = 0
    seconds: float = 0.0  # seconds with at least one fetch under way; `bytes / seconds` is the rate


class ExchangeStats(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks exchanged with other engines, by transport: "socket", "tcp", "device"."""

    fetched: dict[str, FetchStats] = {}
    refused: int = 0  # fetches that were not begun, since computing was predicted to be faster
    sent_blocks: int = 0
    sent_bytes: int = 0


class DraftStats(msgspec.Struct, frozen=True, kw_only=True):
    """The verified drafts of one source, and their tokens, since the start.

    A verified row yields one token more than it accepts.
    """

    drafts: int = 0  # number of verified drafts, each of one row in one step
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def since(self, before: DraftStats | None) -> DraftStats:
        """Subtract the counters `before`, if given."""
        if before is None:
            return self
        return DraftStats(
            drafts=self.drafts - before.drafts,
            drafted_tokens=self.drafted_tokens - before.drafted_tokens,
            accepted_tokens=self.accepted_tokens - before.accepted_tokens,
        )


class GapStats(msgspec.Struct, frozen=True, kw_only=True):
    """The gaps between tokens of sequences that have a target, since the engine started.

    `recent_gaps` and `recent_late` count the last minute. Targets are missed while more than a
    hundredth of the last minute's gaps are late.
    """

    target_s: float = 0.0  # the engine's own target (`--target-itl-ms`); 0: no target
    gaps: int = 0
    late: int = 0
    recent_gaps: int = 0
    recent_late: int = 0
    one_s: float = 0.0  # predicted seconds of a step of one sequence; 0: not measured
    alone_s: float = 0.0  # predicted seconds of the last late step without its prompts

    def __add__(self, other: GapStats) -> GapStats:
        """Add up the counts, and take the larger of both targets and of each pair of seconds."""
        return GapStats(
            target_s=max(self.target_s, other.target_s),
            gaps=self.gaps + other.gaps,
            late=self.late + other.late,
            recent_gaps=self.recent_gaps + other.recent_gaps,
            recent_late=self.recent_late + other.recent_late,
            one_s=max(self.one_s, other.one_s),
            alone_s=max(self.alone_s, other.alone_s),
        )

    @property
    def is_missed(self) -> bool:
        """True if more than a hundredth of the last minute's gaps were late."""
        return self.recent_late > self.recent_gaps * MOST_LATE_GAPS

    @property
    def is_too_short(self) -> bool:
        """True if a step of one sequence takes longer than the engine's target."""
        return 0 < self.target_s < self.one_s

    def describe(self) -> str:
        """Return a sentence: how often targets are missed, and how long decodes take."""
        if self.is_too_short:
            return (
                f"the target of {1e3 * self.target_s:.3g} ms between tokens cannot be kept: a step "
                f"of one sequence takes {1e3 * self.one_s:.3g} ms"
            )
        share = 100 * self.recent_late / max(self.recent_gaps, 1)
        return (
            f"{share:.2g} % of the last minute's gaps between tokens exceed their targets; the "
            f"decodes of the last late step take {1e3 * self.alone_s:.3g} ms without prompts"
        )


BlocksByReason = dict[str, dict[str, int]]
"""Numbers of blocks, by tier and reason."""


class ShareStats(msgspec.Struct, frozen=True, kw_only=True):
    """A flow's usage and quota in one tier, in blocks."""

    held: int
    floor: int  # guaranteed blocks; less than the quota's floor if not all floors fit
    ceiling: int
    fair: float  # fair share if every flow wanted more


class FlowShares(msgspec.Struct, frozen=True, kw_only=True):
    """A flow's shares in each tier, and the evictions for the flow and of the flow's blocks."""

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
    claimed: int = 0  # blocks that are pinned, or will be once computed
    pinned: dict[str, int] = {}


class LowerStates(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints of recurrent states in one tier below the device."""

    total: int
    used: int


class StateStats(msgspec.Struct, frozen=True, kw_only=True):
    """The state slots of a model with recurrent layers, and the state checkpoints in the tree.

    The device's slots hold checkpoints, or states of running sequences, or are free. All counters
    are 0 without recurrent layers.
    """

    total: int = 0
    free: int = 0
    checkpoints: int = 0
    # Counts since the start: checkpoints made, requests begun from a checkpoint, evictions, and
    # checkpoints not made for lack of a slot.
    made: int = 0
    hits: int = 0
    cut_tokens: int = 0  # matched tokens that were computed again for lack of a recurrent state
    evicted: int = 0
    refused: int = 0
    # The checkpoints copied to a lower tier, and loaded to the device, and failed copies.
    copied_down: int = 0
    loaded: int = 0
    failed: int = 0
    lower: dict[str, LowerStates] = {}


class SentinelStats(msgspec.Struct, frozen=True, kw_only=True):
    """The checks of cached answers by recomputation, and damaged blocks, since the start."""

    checked: int = 0
    tokens: int = 0  # compared tokens of these answers
    differed: int = 0  # answers that differed by more than rounding
    dropped: int = 0  # picked answers that were not checked: no time, no room, or forgotten
    largest: float = 0.0  # largest difference, divided by what rounding may cause
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
    """The engine's counters at one moment."""

    engine_id: str
    fingerprint: bytes
    uptime_s: float
    running: int
    waiting: int
    preemptions: int
    steps: int
    generated_tokens: int
    windows: dict[str, WindowStats]  # statistics by length of the window: "1m", "10m", "all"
    pool: PoolStats
    tree_nodes: int
    tree_depth: int
    flows: dict[str, FlowStats]
    loading: int = 0  # sequences whose prefix is being loaded from a lower tier
    failed_loads: int = 0  # sequences that were restarted after a failed load
    dropped_frames: int = 0  # messages to the engine that did not decode
    tiers: TierStats = TierStats()
    shares: dict[str, FlowShares] = {}
    floors_scale: dict[str, float] = {}  # factor of floors by tier, less than 1 if not all fit
    evictions: list[EvictionStats] = []  # the requested number of evictions, newest first
    pins: PinStats = PinStats()
    exchange: ExchangeStats = ExchangeStats()
    drafts: dict[str, DraftStats] = {}
    states: StateStats = StateStats()
    sentinel: SentinelStats = SentinelStats()
    gaps: GapStats = GapStats()
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
