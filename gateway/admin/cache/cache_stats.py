"""The conversion of engines' counters to the operator's views of the cache (`cache_views.py`)."""

from collections.abc import Mapping

import msgspec

from engine.link.interface import ReplicaHealth
from engine.link.stats.engine_stats import EngineStats, WindowStats
from engine.link.stats.flow_stats import EvictionStats, FlowShares
from engine.link.stats.tier_stats import DirectionStats, LowerTierStats, PoolStats
from gateway.admin.cache.cache_views import (
    CacheStats,
    EngineView,
    EvictionView,
    Extent,
    LowerTierView,
    MovesView,
    PoolView,
    QueueView,
    ReplicaView,
    TenantView,
    TiersView,
    TreeView,
    WindowView,
)
from gateway.replicas.joined_stats import each_replica
from gateway.views import view_of

_NO_SHARES = FlowShares()


def cache_stats(
    stats: EngineStats,
    names: dict[str, str],
    replicas: Mapping[str, ReplicaHealth] | None = None,
    *,
    router_answers: bool | None = None,
) -> CacheStats:
    """Convert the engine's counters to the operator's view. `names` are tenants' names by id.

    If there are several engines, `replicas` lists each engine's counters. All other counters are
    sums over the engines.
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
        router_answers=router_answers,
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
    """Convert one eviction to the operator's view, at `now` in seconds since the epoch."""
    return view_of(
        EvictionView, told, time=now - told.age_s, of_tenant=told.of_flow, for_tenant=told.for_flow
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
    """Convert a tenant's counters to the operator's view.

    This works without reflection, which would be too slow for thousands of tenants.
    """
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
