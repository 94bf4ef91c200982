"""The page of metrics, from an exposition with every metric."""

from __future__ import annotations

from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from docs.generate.table import table
from engine.link.interface import ReplicaHealth
from engine.link.stats.engine_stats import (
    DraftStats,
    EngineStats,
    ExchangeStats,
    FetchStats,
    WindowStats,
)
from engine.link.stats.tier_stats import (
    DirectionStats,
    DiskStats,
    LowerStates,
    LowerTierStats,
    PoolStats,
    StateStats,
    TierStats,
)
from gateway.telemetry.metrics import GatewayMetrics


def exposition() -> str:
    """Write the text of /metrics with every metric that it can show."""
    metrics = GatewayMetrics()
    metrics.started("route")
    metrics.ended(
        "route", "stop", prompt_tokens=0, cached_tokens=0, generated_tokens=0, seconds=0.0
    )
    metrics.refused("route", "code")
    metrics.routing.moved("replica")
    metrics.routing.fetch("prefix")
    metrics.routing.snapshot("replica")
    tiers = TierStats(
        lower={"host": _zero(LowerTierStats)},
        ways=[_zero(DirectionStats)],
        evictions={"device": {"room": 0}},
        disk=_zero(DiskStats),
    )
    some = {"pool": _zero(PoolStats), "windows": {"all": _zero(WindowStats)}}
    exchange = ExchangeStats(fetched={"socket": _zero(FetchStats)})
    drafts = {"tree": DraftStats()}
    some["states"] = StateStats(lower={"host": _zero(LowerStates)})
    stats = _zero(EngineStats, tiers=tiers, exchange=exchange, drafts=drafts, **some)
    replica = ReplicaHealth("ready", "")
    return metrics.render(stats, {"0": replica}).decode()


def _zero(struct: type, **given: Any) -> Any:
    needed = (field for field in msgspec.structs.fields(struct) if field.required)
    return struct(
        **{field.name: field.type() for field in needed if field.name not in given}, **given
    )


def metrics_page() -> str:
    """Write each metric with its type and its labels."""
    rows = []
    for family in text_string_to_metric_families(exposition()):
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        name = f"{family.name}_total" if family.type == "counter" else family.name
        shown = ", ".join(f"`{label}`" for label in labels)
        if not family.samples[0].name.endswith("_created"):
            kind = f"{family.type} by {shown}" if shown else family.type
            rows.append((f"`{name}`", kind, family.documentation))
    return table(("metric", "type", "meaning"), rows)
