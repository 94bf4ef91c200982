"""The cache's counters as the operator reads them: a flow in the engine is a tenant here."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine.link.interface import ReplicaHealth, ReplicaState
from engine.link.messages import Role
from engine.link.stats_messages import (
    BlocksByReason,
    DirectionStats,
    DiskStats,
    EngineStats,
    EvictionStats,
    FlowShares,
    LowerTierStats,
    PoolStats,
    ShareStats,
    WindowStats,
)
from gateway.replicas.joined_stats import each_replica
from gateway.views import view_of

_NO_SHARES = FlowShares()


class WindowView(WindowStats, frozen=True, kw_only=True):
    """Prompt tokens in a window of time. `hit_rate` is None when none were queried."""

    hit_rate: float | None


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """The pool's parts in one unit; used = evictable + leased."""

    total: int
    free: int
    used: int
    evictable: int
    leased: int


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """The device pool in blocks and in tokens."""

    block_size: int
    blocks: Extent
    tokens: Extent


class TreeView(msgspec.Struct, frozen=True, kw_only=True):
    """The radix tree's shape, in nodes."""

    nodes: int
    depth: int


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """Sequences in the engine."""

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
    unread_blocks: int  # of those written: found by no request so far
    retained_tokens: int  # of the prefixes that it has marked, whose time has not passed
    tiers: dict[str, ShareStats]  # its share of each tier, in blocks
    caused: BlocksByReason  # blocks evicted to make room for it, by tier
    suffered: BlocksByReason  # blocks of its own that were evicted, by tier


class MovesView(DirectionStats, frozen=True, kw_only=True):
    """Copies from one tier to another since the engine started."""

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
    hit_tokens: dict[str, int]  # by tier
    lower: dict[str, LowerTierView]
    moves: list[MovesView]
    evictions: dict[str, dict[str, int]]  # blocks by tier and reason
    loading: int  # sequences
    failed_loads: int  # sequences
    prefill_tokens_per_s: dict[int, float]  # by length of context
    disk: DiskStats | None


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine has counted. It has as many ranks as the two numbers multiplied.

    All of them run while the engine answers, since it ends with any of them.
    """

    engine_id: str
    tensor_parallel: int  # ranks of each stage
    pipeline_parallel: int  # stages
    uptime_s: float
    steps: int
    preemptions: int
    generated_tokens: int
    windows: dict[str, WindowView]
    pool: PoolView
    tree: TreeView
    queue: QueueView
    tiers: TiersView


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """One of several engines: `counted` is None while it does not answer."""

    name: str
    state: ReplicaState
    reason: str  # why it takes no requests; empty where it does
    role: Role  # which part of requests it is for
    counted: EngineView | None


class CacheStats(EngineView, frozen=True, kw_only=True):
    """Answer of GET /admin/cache/stats: of several engines, the sums and each of them."""

    fingerprint: str  # hex
    tenants: list[TenantView]
    floors_scale: dict[str, float]  # by tier; below 1: all floors together exceed the tier
    replicas: list[ReplicaView]  # empty where there is one engine


class EvictionView(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of one tenant that were evicted to make room for another."""

    time: float  # seconds since the epoch
    of_tenant: str
    for_tenant: str
    tier: str
    reason: str
    blocks: int


class EvictionList(msgspec.Struct, frozen=True):
    """Answer of GET /admin/cache/evictions, the newest first."""

    evictions: list[EvictionView]


def cache_stats(
    stats: EngineStats,
    names: dict[str, str],
    replicas: Mapping[str, ReplicaHealth] | None = None,
) -> CacheStats:
    """The engine's counters as the operator reads them; `names` maps tenant ids to names.

    `replicas` are the engines where there are several, of which the counters are joined.
    """
    counted = each_replica(stats)
    return view_of(
        CacheStats,
        _engine(stats),
        fingerprint=stats.fingerprint.hex(),
        tenants=[_tenant(flow, names.get(flow), stats) for flow in sorted(stats.flows)],
        floors_scale=stats.floors_scale,
        replicas=[
            _replica(name, health, counted.get(name)) for name, health in (replicas or {}).items()
        ],
    )


def _engine(stats: EngineStats) -> EngineView:
    return view_of(
        EngineView,
        stats,
        windows={name: _window(window) for name, window in stats.windows.items()},
        pool=_pool(stats.pool),
        tree=TreeView(nodes=stats.tree_nodes, depth=stats.tree_depth),
        queue=view_of(QueueView, stats),
        tiers=_tiers(stats),
    )


def _replica(name: str, health: ReplicaHealth, stats: EngineStats | None) -> ReplicaView:
    return ReplicaView(
        name=name,
        state=health.state,
        reason=health.why,
        role=health.role,
        counted=None if stats is None else _engine(stats),
    )


def eviction(told: EvictionStats, now: float) -> EvictionView:
    """One entry of the list, at `now` in seconds since the epoch."""
    return view_of(
        EvictionView,
        told,
        time=now - told.age_s,
        of_tenant=told.of_flow,
        for_tenant=told.for_flow,
    )


def _tiers(stats: EngineStats) -> TiersView:
    tiers = stats.tiers
    return view_of(
        TiersView,
        stats,
        tiers,
        hit_tokens=msgspec.structs.asdict(tiers.found),
        lower={name: _lower(lower, tiers.block_bytes) for name, lower in tiers.lower.items()},
        moves=[_moves(way, tiers.block_bytes) for way in tiers.ways],
        prefill_tokens_per_s=tiers.prefill,
    )


def _lower(lower: LowerTierStats, block_bytes: int) -> LowerTierView:
    return view_of(
        LowerTierView,
        lower,
        total_blocks=lower.total,
        used_blocks=lower.used,
        total_bytes=lower.total * block_bytes,
        used_bytes=lower.used * block_bytes,
    )


def _moves(way: DirectionStats, block_bytes: int) -> MovesView:
    moved = way.blocks * block_bytes
    rate = moved / way.seconds / 1e9 if way.seconds else None
    return view_of(MovesView, way, bytes=moved, gb_per_s=rate)


def _window(window: WindowStats) -> WindowView:
    return view_of(WindowView, window, hit_rate=_rate(window.hit_tokens, window.queried_tokens))


def _pool(pool: PoolStats) -> PoolView:
    return PoolView(
        block_size=pool.block_size, blocks=_extent(pool, 1), tokens=_extent(pool, pool.block_size)
    )


def _extent(pool: PoolStats, unit: int) -> Extent:
    return Extent(**{name: getattr(pool, name) * unit for name in Extent.__struct_fields__})


def _tenant(flow: str, name: str | None, stats: EngineStats) -> TenantView:
    """Field by field: there are thousands, and the event loop waits for them."""
    used, shares = stats.flows[flow], stats.shares.get(flow, _NO_SHARES)
    return TenantView(
        id=flow,
        name=name,
        requests=used.requests,
        prompt_tokens=used.prompt_tokens,
        hit_tokens=used.cached_tokens,
        computed_tokens=used.prompt_tokens - used.cached_tokens,
        generated_tokens=used.generated_tokens,
        hit_rate=_rate(used.cached_tokens, used.prompt_tokens),
        blocks_held=used.blocks_held,
        tokens_held=used.blocks_held * stats.pool.block_size,
        evictions_caused=used.evictions_caused,
        evictions_suffered=used.evictions_suffered,
        written_blocks=used.written_blocks,
        unread_blocks=used.unread_blocks,
        retained_tokens=used.retained_blocks * stats.pool.block_size,
        tiers=shares.tiers,
        caused=shares.caused,
        suffered=shares.suffered,
    )


def _rate(hit: int, queried: int) -> float | None:
    return hit / queried if queried else None
