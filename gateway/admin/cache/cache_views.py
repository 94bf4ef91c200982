"""The operator's views of the cache's counters. Each flow of the engine is shown as a tenant."""

import msgspec

from engine.link.interface import ReplicaState
from engine.link.messages import Role
from engine.link.stats.engine_stats import DraftStats, SentinelStats, WindowStats
from engine.link.stats.flow_stats import BlocksByReason, ShareStats
from engine.link.stats.gap_stats import GapStats
from engine.link.stats.tier_stats import DirectionStats, DiskStats, StateStats


class WindowView(WindowStats, frozen=True, kw_only=True):
    """The prompt tokens within a time window. `hit_rate` is None for an empty window."""

    hit_rate: float | None


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of the block pool's parts in blocks or tokens, where used = evictable + leased."""

    total: int
    free: int
    used: int
    evictable: int
    leased: int


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """The device's block pool in blocks and in tokens."""

    block_size: int
    blocks: Extent
    tokens: Extent


class TreeView(msgspec.Struct, frozen=True, kw_only=True):
    """The radix tree's shape, in nodes."""

    nodes: int
    depth: int


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's running and waiting sequences."""

    running: int
    waiting: int


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's use of the cache since the engine started."""

    id: str
    name: str | None  # None: the tenant has been deleted
    requests: int
    prompt_tokens: int
    hit_tokens: int
    computed_tokens: int
    generated_tokens: int
    hit_rate: float | None
    blocks_held: int
    tokens_held: int
    evictions_caused: int
    evictions_suffered: int
    written_blocks: int
    unread_blocks: int  # number of written blocks that no request has reused so far
    # number of tokens that breakpoints retain in the cache now
    retained_tokens: int
    tiers: dict[str, ShareStats]
    caused: BlocksByReason  # other tenants' blocks evicted for this tenant, by tier
    suffered: BlocksByReason  # the tenant's own blocks that were evicted, by tier


class MovesView(DirectionStats, frozen=True, kw_only=True):
    """The block copies from one tier to another since the engine started."""

    bytes: int
    gb_per_s: float | None


class LowerTierView(msgspec.Struct, frozen=True, kw_only=True):
    """One tier below the device, in blocks and bytes."""

    total_blocks: int
    used_blocks: int
    total_bytes: int
    used_bytes: int
    loads_chosen: int
    loads_refused: int


class TiersView(msgspec.Struct, frozen=True, kw_only=True):
    """The tiers below the device, and the copies to and from them."""

    block_bytes: int
    hit_tokens: dict[str, int]
    lower: dict[str, LowerTierView]
    moves: list[MovesView]
    evictions: dict[str, dict[str, int]]
    loading: int  # number of sequences whose prefix is being loaded from a lower tier
    failed_loads: int  # number of sequences that were restarted because a load failed
    # tokens computed per second in prefill, by length of context
    prefill_tokens_per_s: dict[int, float]
    disk: DiskStats | None


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of one engine of `tensor_parallel * pipeline_parallel` ranks.

    All ranks run while the engine answers, because the engine ends if a rank ends.
    """

    engine_id: str
    tensor_parallel: int
    pipeline_parallel: int
    uptime_s: float
    steps: int
    preemptions: int
    generated_tokens: int
    windows: dict[str, WindowView]
    pool: PoolView
    tree: TreeView
    queue: QueueView
    tiers: TiersView
    drafts: dict[str, DraftStats]
    states: StateStats
    # results of the checks that compute cached answers again without the cache
    sentinel: SentinelStats
    gaps: GapStats


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """The view of one of several engines. `counted` is None while the engine does not answer."""

    name: str
    state: ReplicaState
    reason: str
    role: Role
    counted: EngineView | None


class CacheStats(EngineView, frozen=True, kw_only=True):
    """Answer of GET /admin/cache/stats: each engine, and the sums over several engines."""

    fingerprint: str  # hex digest of all settings that decide the bits of a block
    tenants: list[TenantView]
    # factor by which all floors are multiplied, by tier; below 1 if their sum exceeds the tier
    floors_scale: dict[str, float]
    replicas: list[ReplicaView]  # empty with a single engine
    router_answers: bool | None  # null: this gateway has no router process


class EvictionView(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of one tenant that were evicted to make room for another tenant."""

    time: float  # seconds since the epoch
    of_tenant: str
    for_tenant: str
    tier: str
    reason: str
    blocks: int


class EvictionList(msgspec.Struct, frozen=True):
    """Answer of GET /admin/cache/evictions, the newest eviction first."""

    evictions: list[EvictionView]
