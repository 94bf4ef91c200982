"""Stats of the tiers: what they hold, and what was copied between them.

Knows: where each number is kept. Does not know: who reads them.
"""

from __future__ import annotations

from engine.copies import Copies, Disk
from engine.sequence import Found
from engine.stats_messages import DiskStats, LowerTierStats, TierStats, TierTokens, WayStats
from prefix_cache.cache import PrefixCache
from prefix_cache.recompute import LoadOrRecompute
from storage.move import Tier


def tier_stats(
    cache: PrefixCache, copies: Copies, rates: LoadOrRecompute, found: Found
) -> TierStats:
    """The tiers' counters as they are now."""
    return TierStats(
        block_bytes=rates.block_bytes,
        found=TierTokens(found.device, found.host, found.disk),
        lower=_lower(cache, rates),
        ways=_ways(copies),
        evictions={
            tier.value: {reason.value: blocks for reason, blocks in by_reason.items()}
            for tier in Tier
            if (by_reason := cache.traffic.by_reason(tier))
        },
        prefill=rates.prefill.tokens_per_second(),
        disk=None if copies.disk is None else _disk(copies.disk),
    )


def _lower(cache: PrefixCache, rates: LoadOrRecompute) -> dict[str, LowerTierStats]:
    return {
        tier.value: LowerTierStats(
            total=use.total,
            used=use.used,
            loads_chosen=rates.choices.chosen[tier],
            loads_refused=rates.choices.refused[tier],
        )
        for tier, use in cache.lower_tiers().items()
    }


def _ways(copies: Copies) -> list[WayStats]:
    return [
        WayStats(
            source=source.value,
            target=target.value,
            blocks=way.moves,
            failed=way.failed,
            seconds=way.seconds,
            under_way=way.under_way,
        )
        for (source, target), way in sorted(
            copies.ways.items(), key=lambda item: (item[0][0].value, item[0][1].value)
        )
    ]


def _disk(disk: Disk) -> DiskStats:
    stats = disk.stats
    return DiskStats(
        state=disk.state.value,
        bytes=stats.bytes,
        records=stats.records,
        lost=stats.lost,
        refused=stats.refused,
        late=stats.late,
        quarantines=stats.quarantines,
        failures=stats.failures,
    )
