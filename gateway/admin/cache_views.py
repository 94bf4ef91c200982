"""The cache's counters as the operator reads them.

Knows: that a flow in the engine is a tenant here, and how counters become rates. Does not
know: how the engine counts.
"""

from __future__ import annotations

import msgspec

from engine.stats_messages import (
    BlocksByReason,
    DiskStats,
    EngineStats,
    EvictionStats,
    FlowShares,
    PoolStats,
    ShareStats,
    WayStats,
    WindowStats,
)


class WindowView(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens in a window of time. `hit_rate` is None when none were queried."""

    queried_tokens: int
    hit_tokens: int
    computed_tokens: int
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
    tiers: dict[str, ShareStats]  # its share of each tier, in blocks
    caused: BlocksByReason  # blocks evicted to make room for it, by tier
    suffered: BlocksByReason  # blocks of its own that were evicted, by tier


class MovesView(msgspec.Struct, frozen=True, kw_only=True):
    """Copies from one tier to another since the engine started."""

    source: str
    target: str
    blocks: int
    bytes: int
    failed: int  # blocks
    under_way: int  # blocks
    seconds: float  # during which at least one copy was under way
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


class CacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /admin/cache/stats."""

    engine_id: str
    fingerprint: str  # hex
    uptime_s: float
    steps: int
    preemptions: int
    generated_tokens: int
    windows: dict[str, WindowView]
    pool: PoolView
    tree: TreeView
    queue: QueueView
    tenants: list[TenantView]
    tiers: TiersView
    floors_scale: dict[str, float]  # by tier; below 1: all floors together exceed the tier


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


def cache_stats(stats: EngineStats, names: dict[str, str]) -> CacheStats:
    """The engine's counters as the operator reads them; `names` maps tenant ids to names."""
    return CacheStats(
        engine_id=stats.engine_id,
        fingerprint=stats.fingerprint.hex(),
        uptime_s=stats.uptime_s,
        steps=stats.steps,
        preemptions=stats.preemptions,
        generated_tokens=stats.generated_tokens,
        windows={name: _window(window) for name, window in stats.windows.items()},
        pool=_pool(stats.pool),
        tree=TreeView(nodes=stats.tree_nodes, depth=stats.tree_depth),
        queue=QueueView(running=stats.running, waiting=stats.waiting),
        tenants=[_tenant(flow, names.get(flow), stats) for flow in sorted(stats.flows)],
        tiers=_tiers(stats),
        floors_scale=stats.floors_scale,
    )


def eviction(told: EvictionStats, now: float) -> EvictionView:
    """One entry of the list, at `now` in seconds since the epoch."""
    return EvictionView(
        time=now - told.age_s,
        of_tenant=told.of_flow,
        for_tenant=told.for_flow,
        tier=told.tier,
        reason=told.reason,
        blocks=told.blocks,
    )


def _tiers(stats: EngineStats) -> TiersView:
    tiers = stats.tiers
    return TiersView(
        block_bytes=tiers.block_bytes,
        hit_tokens=msgspec.structs.asdict(tiers.found),
        lower={
            name: LowerTierView(
                total_blocks=lower.total,
                used_blocks=lower.used,
                total_bytes=lower.total * tiers.block_bytes,
                used_bytes=lower.used * tiers.block_bytes,
                loads_chosen=lower.loads_chosen,
                loads_refused=lower.loads_refused,
            )
            for name, lower in tiers.lower.items()
        },
        moves=[_moves(way, tiers.block_bytes) for way in tiers.ways],
        evictions=tiers.evictions,
        loading=stats.loading,
        failed_loads=stats.failed_loads,
        prefill_tokens_per_s=tiers.prefill,
        disk=tiers.disk,
    )


def _moves(way: WayStats, block_bytes: int) -> MovesView:
    moved = way.blocks * block_bytes
    return MovesView(
        source=way.source,
        target=way.target,
        blocks=way.blocks,
        bytes=moved,
        failed=way.failed,
        under_way=way.under_way,
        seconds=way.seconds,
        gb_per_s=moved / way.seconds / 1e9 if way.seconds else None,
    )


def _window(window: WindowStats) -> WindowView:
    return WindowView(
        queried_tokens=window.queried_tokens,
        hit_tokens=window.hit_tokens,
        computed_tokens=window.computed_tokens,
        hit_rate=_rate(window.hit_tokens, window.queried_tokens),
    )


def _pool(pool: PoolStats) -> PoolView:
    return PoolView(
        block_size=pool.block_size, blocks=_extent(pool, 1), tokens=_extent(pool, pool.block_size)
    )


def _extent(pool: PoolStats, unit: int) -> Extent:
    return Extent(
        total=pool.total * unit,
        free=pool.free * unit,
        used=pool.used * unit,
        evictable=pool.evictable * unit,
        leased=pool.leased * unit,
    )


def _tenant(flow: str, name: str | None, stats: EngineStats) -> TenantView:
    used, shares = stats.flows[flow], stats.shares.get(flow, FlowShares())
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
        tiers=shares.tiers,
        caused=shares.caused,
        suffered=shares.suffered,
    )


def _rate(hit: int, queried: int) -> float | None:
    return hit / queried if queried else None
