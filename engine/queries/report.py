"""The report: the counters of the engine, its tiers and quotas in one message."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from operator import attrgetter

import msgspec

from engine.components import Components
from engine.copies import TierCopies
from engine.link.stats.engine_stats import EngineStats, SentinelStats
from engine.link.stats.flow_stats import BlocksByReason, EvictionStats, FlowShares, ShareStats
from engine.link.stats.tier_stats import (
    DirectionStats,
    DiskStats,
    LowerStates,
    LowerTierStats,
    PoolStats,
    StateStats,
    TierStats,
)
from engine.tier_interfaces import Disk
from prefix_cache.cache import PrefixCache
from prefix_cache.leases.load_or_recompute import LoadOrRecompute
from prefix_cache.tiers.eviction_log import EvictionEntry, Reason
from prefix_cache.tiers.quotas import Evictions
from storage.move import Tier


def report(components: Components, tree_depth: int, evictions: int) -> EngineStats:
    """Return all present counters, and at most the last `evictions` evictions between flows."""
    cache, now = components.cache, components.clock()
    flows = components.counters.flows(cache)
    return EngineStats(
        engine_id=components.welcome.engine_id,
        fingerprint=components.welcome.fingerprint,
        uptime_s=components.counters.uptime(now),
        running=len(components.scheduler.running),
        waiting=len(components.scheduler.queue),
        preemptions=components.scheduler.active.num_preemptions,
        steps=components.counters.steps,
        generated_tokens=components.counters.generated_tokens,
        windows=components.counters.windows(now),
        pool=PoolStats(block_size=cache.block_size, **asdict(cache.capacity.pool())),
        tree_nodes=cache.tree.num_nodes,
        tree_depth=tree_depth,
        flows=flows,
        loading=len(components.scheduler.loading),
        failed_loads=components.scheduler.active.num_failed_loads,
        dropped_frames=components.link.dropped_frames,
        tiers=_tier_stats(components),
        shares=_flow_shares(cache, flows),
        floors_scale={tier.value: by for tier, by in cache.quotas.floors_scale.items()},
        evictions=[
            eviction_stats(one, now) for one in cache.eviction_log.entries()[: max(evictions, 0)]
        ],
        pins=components.pins.stats(),
        exchange=components.exchange.stats(),
        drafts=dict(components.counters.drafts),
        states=state_stats(cache),
        sentinel=sentinel_stats(components),
        gaps=components.scheduler.gap_targets.stats(),
        tensor_parallel=components.welcome.tensor_parallel,
        pipeline_parallel=components.welcome.pipeline_parallel,
    )


def sentinel_stats(components: Components) -> SentinelStats:
    """Return the sentinel's counters, and the number of damaged blocks."""
    damaged = components.copies.num_damaged
    return msgspec.structs.replace(components.sentinel.stats, damaged_blocks=damaged)


def _tier_stats(components: Components) -> TierStats:
    cache, copies, rates = components.cache, components.copies, components.rates
    return TierStats(
        block_bytes=rates.block_bytes,
        found=components.counters.found,
        lower=_lower(cache, rates),
        ways=_ways(copies),
        evictions={
            tier.value: {reason.value: blocks for reason, blocks in by_reason.items()}
            for tier in Tier
            if (by_reason := cache.eviction_log.by_reason(tier))
        },
        prefill=components.times.tokens_per_second(),
        disk=None if copies.disk is None else disk_stats(copies.disk),
    )


def state_stats(cache: PrefixCache) -> StateStats:
    """Count state slots and state checkpoints."""
    device, *lower = cache.checkpoints.tiers.values()
    return StateStats(
        total=device.usage.total,
        free=device.allocator.num_free,
        checkpoints=device.num_kept,
        lower={at.tier.value: LowerStates(total=at.usage.total, used=at.num_used) for at in lower},
        **asdict(cache.checkpoints.counts),
    )


def _lower(cache: PrefixCache, rates: LoadOrRecompute) -> dict[str, LowerTierStats]:
    return {
        tier.value: LowerTierStats(
            **asdict(use), loads_chosen=rates.chosen[tier], loads_refused=rates.refused[tier]
        )
        for tier, use in cache.capacity.lower_tiers().items()
    }


def _ways(copies: TierCopies) -> list[DirectionStats]:
    ways = [
        DirectionStats(
            source=source.value,
            target=target.value,
            blocks=way.moves,
            failed=way.failed,
            seconds=way.seconds,
            under_way=way.under_way,
        )
        for (source, target), way in copies.ways.items()
    ]
    return sorted(ways, key=attrgetter("source", "target"))


def disk_stats(disk: Disk) -> DiskStats:
    """Return the disk tier's counters."""
    return msgspec.convert({"state": disk.state.value, **asdict(disk.stats)}, DiskStats)


def _flow_shares(cache: PrefixCache, flows: Collection[str]) -> dict[str, FlowShares]:
    shares, evictions = cache.quotas.shares(), cache.quotas.evictions()
    none = Evictions()
    return {
        flow: FlowShares(
            tiers={tier.value: _share(*share) for tier, share in shares.get(flow, {}).items()},
            caused=_by_reason(evictions.get(flow, none).caused),
            suffered=_by_reason(evictions.get(flow, none).suffered),
        )
        for flow in flows
        if flow in shares or flow in evictions
    }


def _share(held: int, floor: int, ceiling: int, fair: float) -> ShareStats:
    """Build a ShareStats from its fields, because `asdict` takes ten times as long."""
    return ShareStats(held=held, floor=floor, ceiling=ceiling, fair=fair)


def eviction_stats(entry: EvictionEntry, now: float) -> EvictionStats:
    """Convert an entry of the eviction log. `now` is in seconds of the cache's clock."""
    tier, reason, of_owner, for_owner = entry.eviction
    return EvictionStats(
        age_s=now - entry.when,
        of_flow=of_owner,
        for_flow=for_owner,
        tier=tier.value,
        reason=reason.value,
        blocks=entry.blocks,
    )


def _by_reason(counts: Mapping[tuple[Tier, Reason], int]) -> BlocksByReason:
    found: BlocksByReason = {}
    for (tier, reason), blocks in counts.items():
        found.setdefault(tier.value, {})[reason.value] = blocks
    return found
