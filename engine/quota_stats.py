"""Stats of quotas: what flows hold of each tier, and whose blocks were evicted for whom.

Knows: where each number is kept. Does not know: who reads them, or what a flow is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from engine.stats_messages import BlocksByReason, EvictionStats, FlowShares, ShareStats
from prefix_cache.cache import PrefixCache
from prefix_cache.eviction_log import Entry
from prefix_cache.quotas import Evictions
from prefix_cache.traffic import Reason
from storage.move import Tier


def floors_scale(cache: PrefixCache) -> dict[str, float]:
    """The factor by which floors are scaled down, by tier; 1 where they all fit."""
    return {tier.value: scale for tier, scale in cache.quotas.floors_scale.items()}


def flow_shares(cache: PrefixCache, flows: Collection[str]) -> dict[str, FlowShares]:
    """What each of `flows` that the cache knows holds and may hold, and its evictions."""
    shares, evictions = cache.quotas.shares(), cache.quotas.evictions()
    return {
        flow: FlowShares(
            tiers={
                tier.value: ShareStats(
                    held=share.held, floor=share.floor, ceiling=share.ceiling, fair=share.fair
                )
                for tier, share in shares.get(flow, {}).items()
            },
            caused=_by_reason(evictions.get(flow, Evictions()).caused),
            suffered=_by_reason(evictions.get(flow, Evictions()).suffered),
        )
        for flow in flows
        if flow in shares or flow in evictions
    }


def last_evictions(cache: PrefixCache, most: int, now: float) -> list[EvictionStats]:
    """Up to `most` of the last evictions between different flows, the newest first."""
    return [_told(entry, now) for entry in cache.eviction_log.entries()[: max(most, 0)]]


def _told(entry: Entry, now: float) -> EvictionStats:
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
