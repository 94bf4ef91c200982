"""The page of metrics, from an exposition with every metric."""

from __future__ import annotations

from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from docs.generate.table import table
from engine.link import stats_messages as counted
from engine.link.interface import ReplicaHealth
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
    tiers = counted.TierStats(
        lower={"host": _zero(counted.LowerTierStats)},
        ways=[_zero(counted.DirectionStats)],
        evictions={"device": {"room": 0}},
        disk=_zero(counted.DiskStats),
    )
    some = {"pool": _zero(counted.PoolStats), "windows": {"all": _zero(counted.WindowStats)}}
    exchange = counted.ExchangeStats(fetched={"socket": _zero(counted.FetchStats)})
    drafts = {"tree": counted.DraftStats()}
    some["states"] = counted.StateStats(lower={"host": _zero(counted.LowerStates)})
    stats = _zero(counted.EngineStats, tiers=tiers, exchange=exchange, drafts=drafts, **some)
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
