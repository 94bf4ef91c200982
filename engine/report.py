"""The engine's counters, gathered into one message.

Knows: which part counts what. Does not know: who asked, or how a counter came to its value.
"""

from __future__ import annotations

from engine.parts import Parts
from engine.quota_stats import floors_scale, flow_shares, last_evictions
from engine.stats import pool_stats
from engine.stats_messages import EngineStats
from engine.tier_stats import tier_stats


def report(parts: Parts, evictions: int) -> EngineStats:
    """All counters as they are now, and at most `evictions` of the last ones between flows."""
    flows = parts.meter.flows(parts.cache)
    now = parts.clock()
    return EngineStats(
        engine_id=parts.welcome.engine_id,
        fingerprint=parts.welcome.fingerprint,
        uptime_s=parts.meter.uptime(now),
        running=len(parts.scheduler.running),
        waiting=len(parts.scheduler.queue),
        preemptions=parts.scheduler.active.num_preemptions,
        steps=parts.meter.steps,
        generated_tokens=parts.meter.generated_tokens,
        windows=parts.meter.windows(now),
        pool=pool_stats(parts.cache),
        tree_nodes=parts.cache.num_nodes,
        tree_depth=parts.cache.depth,
        flows=flows,
        loading=len(parts.scheduler.loading),
        failed_loads=parts.scheduler.active.num_failed_loads,
        dropped_frames=parts.link.dropped_frames,
        tiers=tier_stats(parts.cache, parts.copies, parts.rates, parts.meter.found),
        shares=flow_shares(parts.cache, flows),
        floors_scale=floors_scale(parts.cache),
        evictions=last_evictions(parts.cache, evictions, now),
        pins=parts.pins.stats(),
    )
