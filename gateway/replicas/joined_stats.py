"""The joined counters of several engines: sums of all counters that can be added up.

The sums cover the engines that have answered. When an engine restarts, it counts from zero, and the
sum falls.
"""

from collections.abc import Iterable, Mapping, Sequence

from engine.link.stats.engine_stats import EngineStats, ExchangeStats, SentinelStats
from engine.link.stats.flow_stats import BlocksByReason, FlowShares, PinStats
from engine.link.stats.gap_stats import GapStats
from engine.link.stats.tier_stats import DirectionStats, DiskStats, PoolStats, StateStats, TierStats
from gateway.replicas.sums import merged, summed

# The states of disks. Of several states, the first in this order is shown.
_WORST_FIRST = ("down", "off", "starting", "up")


class JoinedStats(EngineStats, frozen=True, kw_only=True):
    """The joined counters, and each replica's own counters by its name."""

    replicas: dict[str, EngineStats]


def each_replica(stats: EngineStats) -> dict[str, EngineStats]:
    """Return each answering replica's counters by name, or {} for a single engine."""
    return stats.replicas if isinstance(stats, JoinedStats) else {}


def joined_stats(found: Mapping[str, EngineStats], evictions: int) -> JoinedStats:
    """Join the counters of the engines in `found`, with their latest `evictions` evictions."""
    parts = list(found.values())
    listed = sorted((e for part in parts for e in part.evictions), key=lambda one: one.age_s)
    return JoinedStats(
        engine_id="+".join(part.engine_id for part in parts),
        fingerprint=parts[0].fingerprint,
        # the fingerprint covers both kinds of parallelism
        tensor_parallel=parts[0].tensor_parallel,
        pipeline_parallel=parts[0].pipeline_parallel,
        uptime_s=max(part.uptime_s for part in parts),
        tree_depth=max(part.tree_depth for part in parts),
        windows=merged((part.windows for part in parts), summed),
        pool=_pool([part.pool for part in parts]),
        flows=merged((part.flows for part in parts), summed),
        tiers=_tiers([part.tiers for part in parts]),
        shares=merged((part.shares for part in parts), _shares),
        floors_scale=merged((part.floors_scale for part in parts), min),
        evictions=listed[:evictions],
        pins=_pins([part.pins for part in parts]),
        exchange=_exchange([part.exchange for part in parts]),
        drafts=merged((part.drafts for part in parts), summed),
        states=joined_states([part.states for part in parts]),
        sentinel=sum((part.sentinel for part in parts), SentinelStats()),
        gaps=sum((part.gaps for part in parts), GapStats()),
        replicas=dict(found),
        **{name: sum(getattr(part, name) for part in parts) for name in _COUNTS},
    )


def joined_states(parts: Sequence[StateStats]) -> StateStats:
    """Add up the slots and the state checkpoints of recurrent layers."""
    return summed(parts, lower=merged((part.lower for part in parts), summed))


_COUNTS = (
    "running",
    "waiting",
    "preemptions",
    "steps",
    "generated_tokens",
    "tree_nodes",
    "loading",
    "failed_loads",
    "dropped_frames",
)


def _pool(pools: Sequence[PoolStats]) -> PoolStats:
    return summed(pools, block_size=pools[0].block_size)


def _pins(pins: Sequence[PinStats]) -> PinStats:
    """Join pins. A pin on several engines counts once, by its id, but its claims add up."""
    return summed(pins, pinned=merged((one.pinned for one in pins), max))


def _exchange(exchanges: Sequence[ExchangeStats]) -> ExchangeStats:
    return summed(exchanges, fetched=merged((one.fetched for one in exchanges), summed))


def _tiers(tiers: Sequence[TierStats]) -> TierStats:
    ways = merged(({(way.source, way.target): way for way in one.ways} for one in tiers), _way)
    return summed(
        tiers,
        block_bytes=max(one.block_bytes for one in tiers),
        lower=merged((one.lower for one in tiers), summed),
        ways=list(ways.values()),
        evictions=_by_reason(one.evictions for one in tiers),
        prefill=merged((one.prefill for one in tiers), _mean),
        disk=joined_disk([one.disk for one in tiers]),
    )


def joined_disk(disks: Iterable[DiskStats | None]) -> DiskStats | None:
    """Sum up the disks, with the worst disk's state; None if no engine has a disk tier."""
    there = [disk for disk in disks if disk is not None]
    if not there:
        return None
    return summed(
        there,
        state=min((disk.state for disk in there), key=_WORST_FIRST.index),
        disk_full=any(disk.disk_full for disk in there),
    )


def _way(ways: list[DirectionStats]) -> DirectionStats:
    return summed(ways, source=ways[0].source, target=ways[0].target)


def _shares(shares: list[FlowShares]) -> FlowShares:
    return FlowShares(
        tiers=merged((one.tiers for one in shares), summed),
        caused=_by_reason(one.caused for one in shares),
        suffered=_by_reason(one.suffered for one in shares),
    )


def _by_reason(blocks: Iterable[BlocksByReason]) -> BlocksByReason:
    return merged(blocks, lambda reasons: merged(reasons, sum))


def _mean(rates: list[float]) -> float:
    return sum(rates) / len(rates)
