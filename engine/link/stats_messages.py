"""The counters of an engine, which it sends to gateways in `StatsReply`."""

from __future__ import annotations

from typing import Literal

import msgspec

StateTier = Literal["host", "disk"]  # tiers from which a recurrent state may be loaded
MOST_LATE_GAPS = 0.01  # maximum share of late gaps for which a target counts as met


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
    retained_blocks: int = 0  # blocks of marked prefixes whose retention has not ended, in any tier


class WindowStats(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of prompt tokens looked up, found, fetched and computed in a period of time."""

    queried_tokens: int
    hit_tokens: int
    fetched_tokens: int = 0  # tokens fetched from other engines; hits do not include them
    computed_tokens: int


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


class GapStats(msgspec.Struct, frozen=True, kw_only=True):
    """The gaps between tokens of sequences that have a target, since the engine started.

    `recent_gaps` and `recent_late` count gaps of the last minute. Targets count as missed while
    more than 1 % of these gaps are late.
    """

    target_s: float = 0.0  # the engine's own target (`--target-itl-ms`); 0: no target
    gaps: int = 0
    late: int = 0
    recent_gaps: int = 0
    recent_late: int = 0
    one_s: float = 0.0  # predicted seconds of a step with one sequence; 0: not measured
    # Predicted seconds that the last late step would have taken without its prompts.
    alone_s: float = 0.0

    def __add__(self, other: GapStats) -> GapStats:
        """Add the counts. Take the maximum of the targets and of each predicted time."""
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
        """True if more than 1 % of the last minute's gaps were late."""
        return self.recent_late > self.recent_gaps * MOST_LATE_GAPS

    @property
    def is_too_short(self) -> bool:
        """True if the engine's target is too short: a step with one sequence takes longer."""
        return 0 < self.target_s < self.one_s

    def describe(self) -> str:
        """Return a sentence that says how often targets are missed, and how long decodes take."""
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
    # The counts since the start of: checkpoints made, requests that started from a checkpoint,
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
