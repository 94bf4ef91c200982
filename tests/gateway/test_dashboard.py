"""The shipped Grafana dashboard uses only metrics and labels that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from engine.link.interface import ReplicaHealth
from engine.link.stats.engine_stats import DraftStats, ExchangeStats, FetchStats
from gateway.replicas.joined_stats import joined_stats
from gateway.telemetry.engine_metrics import EngineCollector
from gateway.telemetry.metrics import GatewayMetrics
from tests.gateway.support.operated_engine import SOME_STATES, some_stats, some_tiers

DASHBOARD = Path(__file__).parents[2] / "deploy/grafana/ratoon.json"
_NAME = re.compile(r"\bratoon_\w+")
_OF_REPLICAS = "ratoon_replica_"
_LABELS = re.compile(r"\bby \(([^)]*)\)")
_SUMMED = re.compile(r"\bsum(?: by \([^)]*\))? ?\((?:rate\()?(ratoon_\w+)")


def shown(dashboard: Any) -> list[dict[str, Any]]:
    """Return the dashboard's panels that have queries."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions(dashboard: Any) -> list[str]:
    return [target["expr"] for panel in shown(dashboard) for target in panel["targets"]]


def exposed() -> dict[str, set[str]]:
    """Return every sample name of `/metrics` with its label names."""
    metrics = GatewayMetrics()
    metrics.started("/v1/completions")
    metrics.refused("/v1/completions", "invalid_value")
    metrics.ended(
        "/v1/completions",
        "stop",
        prompt_tokens=1,
        cached_tokens=1,
        generated_tokens=1,
        seconds=1.0,
    )
    metrics.routing.moved("0")
    metrics.routing.fetch("prefix")
    metrics.routing.snapshot("0")
    exchange = ExchangeStats(fetched={"socket": FetchStats()})
    one = replace(
        some_stats(tiers=some_tiers(), states=SOME_STATES),
        exchange=exchange,
        drafts={"own": DraftStats()},
    )
    stats = joined_stats({"0": one}, 0)
    shown = metrics.render(stats, {"0": ReplicaHealth("ready", "")}).decode()
    samples: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(shown):
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    return samples


def unknown(asked: list[str], samples: dict[str, set[str]]) -> list[str]:
    """List the names and labels in the expressions `asked` that are not in `samples`."""
    wrong = []
    for expression in asked:
        names = _NAME.findall(expression)
        known = set().union(*(samples.get(name, set()) for name in names))
        grouped = {
            label.strip() for labels in _LABELS.findall(expression) for label in labels.split(",")
        }
        wrong += [name for name in names if name not in samples]
        wrong += sorted(grouped - known)
    return wrong


def of_the_engine() -> set[str]:
    """Return every sample name about the engine, which each gateway reports with the same value."""
    families = EngineCollector(some_stats(tiers=some_tiers(), states=SOME_STATES)).collect()
    return {sample.name for family in families for sample in family.samples}


def counted_twice(asked: list[str]) -> list[str]:
    """List the metrics that `asked` sums over gateways, although all gateways report the same
    value.
    """
    return [name for e in asked for name in _SUMMED.findall(e) if name in of_the_engine()]


@pytest.fixture(scope="module")
def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text())


def test_every_metric_and_label_that_it_names_is_there(dashboard: Any) -> None:
    assert len(expressions(dashboard)) > 20
    assert unknown(expressions(dashboard), exposed()) == []


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("rate(ratoon_requests[5m])", ["ratoon_requests"]),
        ("sum by (tenant) (ratoon_requests_total)", ["tenant"]),
        (
            "histogram_quantile(0.5, sum by (le) (ratoon_queue_bucket))",
            ["ratoon_queue_bucket", "le"],
        ),
        ("sum by (le, route) (rate(ratoon_request_seconds_bucket[5m]))", []),
    ],
)
def test_a_wrong_name_is_found(expression: str, wrong: list[str]) -> None:
    assert unknown([expression], exposed()) == wrong


def test_one_engine_before_two_gateways_is_counted_once(dashboard: Any) -> None:
    assert counted_twice(expressions(dashboard)) == []


@pytest.mark.parametrize(
    ("expression", "twice"),
    [
        ("sum(ratoon_engine_running)", ["ratoon_engine_running"]),
        (
            "sum by (tier) (rate(ratoon_tier_hit_tokens_total[5m]))",
            ["ratoon_tier_hit_tokens_total"],
        ),
        ("sum(max by (state) (ratoon_pool_blocks))", []),
        ("sum(rate(ratoon_cached_tokens_total[5m]))", []),  # this metric differs between gateways
    ],
)
def test_what_is_counted_twice_is_found(expression: str, twice: list[str]) -> None:
    assert counted_twice([expression]) == twice


def test_no_metric_is_left_out(dashboard: Any) -> None:
    """Show every metric, except those of replicas that repeat the engine's."""
    named = {name for expression in expressions(dashboard) for name in _NAME.findall(expression)}
    named = {name for name in named if not name.startswith(_OF_REPLICAS)}
    families = {re.sub(r"_(bucket|sum|count|created|total)$", "", name) for name in named}
    counted = {
        re.sub(r"_(bucket|sum|count|created|total)$", "", name)
        for name in exposed()
        if name.startswith("ratoon_") and not name.startswith(_OF_REPLICAS)
    }
    assert families == counted


def test_panels_do_not_lie_on_each_other(dashboard: Any) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
