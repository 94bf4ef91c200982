"""The answers to queries of operators' views. Making an answer takes bounded time.

The owner thread makes them between steps. An overview reads each owner of a tier once, and lists
only a few owners. The number of sequences is bounded by the queue.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection
from itertools import islice
from typing import Any

from engine.components import Components
from engine.link.view_messages import (
    Overview,
    OverviewQuery,
    OwnerView,
    PrefixesQuery,
    QueueUsage,
    Sequences,
    SequencesQuery,
    SequenceState,
    SequenceView,
    TierUsage,
    TreeQuery,
    View,
    ViewReply,
)
from engine.queries.report import disk_stats, eviction_stats, sentinel_stats, state_stats
from engine.queries.tree_views import TreeViews
from engine.sequences.sequence import Sequence
from prefix_cache.cache import PrefixCache
from storage.move import Tier


def view(
    components: Components, tree_views: TreeViews, query: View[Any], alive: Collection[Sequence]
) -> ViewReply:
    """Answer one query. `alive` are all accepted sequences, the oldest first."""
    match query:
        case OverviewQuery():
            return _overview(components, query)
        case SequencesQuery():
            now = components.clock()
            listed = [_sequence(one, now) for one in islice(alive, query.limit)]
            return Sequences(query_id=query.query_id, total=len(alive), sequences=listed)
        case TreeQuery():
            return tree_views.level(query)
        case PrefixesQuery():
            return tree_views.prefixes(query)
    raise AssertionError(query)


def _overview(components: Components, query: OverviewQuery) -> Overview:
    cache, counters, rates = components.cache, components.counters, components.rates
    now, scheduler, disk = components.clock(), components.scheduler, components.copies.disk
    log = cache.eviction_log.entries() if query.evictions else []
    return Overview(
        query_id=query.query_id,
        engine_id=components.welcome.engine_id,
        uptime_s=counters.uptime(now),
        found=counters.found,
        computed_tokens=counters.total().computed_tokens,
        generated_tokens=counters.generated_tokens,
        waiting=len(scheduler.queue),
        running=len(scheduler.running) + len(scheduler.loading),
        loads_chosen=sum(rates.chosen.values()),
        loads_refused=sum(rates.refused.values()),
        tiers=_tiers(cache, query.owners) if query.owners else [],
        queue=_queue(components, query.owners) if query.owners else [],
        evictions=[eviction_stats(one, now) for one in log[: query.evictions]],
        disk=None if disk is None else disk_stats(disk),
        drafts=dict(counters.drafts),
        states=state_stats(cache),
        sentinel=sentinel_stats(components),
        gaps=components.scheduler.gap_targets.stats(),
    )


def _tiers(cache: PrefixCache, most: int) -> list[TierUsage]:
    return [
        TierUsage(
            tier=tier.value,
            total=allocator.total,
            used=allocator.total - allocator.num_free,
            owners=_owners(cache, tier, most),
            num_owners=sum(map(bool, cache.capacity.quota_usages[tier].held.values())),
        )
        for tier, allocator in cache.capacity.allocators.items()
    ]


def _owners(cache: PrefixCache, tier: Tier, most: int) -> list[OwnerView]:
    usage = cache.capacity.quota_usages[tier]
    largest = heapq.nlargest(most, ((blocks, owner) for owner, blocks in usage.held.items()))
    return [
        OwnerView(owner, blocks, usage.floor(owner), usage.ceiling(owner))
        for blocks, owner in largest
        if blocks
    ]


def _queue(components: Components, most: int) -> list[QueueUsage]:
    scheduler = components.scheduler
    waiting = Counter(one.flow for one in scheduler.queue)
    running = Counter(one.flow for one in (*scheduler.running, *scheduler.loading))
    flows = heapq.nlargest(most, ((n, flow) for flow, n in (waiting + running).items()))
    return [QueueUsage(flow, waiting[flow], running[flow]) for _, flow in flows]


def _sequence(sequence: Sequence, now: float) -> SequenceView:
    return SequenceView(
        sequence.request_id,
        sequence.flow,
        _state(sequence),
        now - sequence.arrived,
        sequence.prompt_len,
        sequence.found.total,
        sequence.num_output,
    )


def _state(sequence: Sequence) -> SequenceState:
    if sequence.lease is None:
        return "waiting"
    if sequence.is_loading:
        return "loading"
    return "prefill" if sequence.num_computed < sequence.prompt_len else "decode"
