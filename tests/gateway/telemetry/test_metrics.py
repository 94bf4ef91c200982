from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import REGISTRY, CollectorRegistry, Histogram
from prometheus_client.parser import text_string_to_metric_families

from engine.link.stats.engine_stats import EngineStats
from engine.link.stats.flow_stats import FlowStats
from gateway.processes.worker_metrics import end_gauges
from gateway.telemetry.instruments import (
    FIRST_TOKEN_BUCKETS,
    GAP_BUCKETS,
    QUEUE_BUCKETS,
    REQUEST_BUCKETS,
    BulkHistogram,
)
from gateway.telemetry.metrics import GatewayMetrics
from tests.gateway.support.operated_engine import some_stats, some_tiers

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

LABELS = {
    "route", "outcome", "code", "le", "state", "tier", "choice", "reason", "source", "target",
    "status", "result",
}  # fmt: skip


def samples(metrics: GatewayMetrics, stats: EngineStats | None = None) -> Samples:
    return parsed(metrics.render(stats).decode())


def parsed(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(of: Samples, name: str, **labels: str) -> float:
    return of[name, tuple(sorted(labels.items()))]


def one_request(metrics: GatewayMetrics, outcome: str = "stop") -> None:
    metrics.started("/v1/completions")
    metrics.queued(0.002)
    metrics.first_token(0.03)
    metrics.gaps([0.011, 0.012])
    metrics.ended(
        "/v1/completions",
        outcome,
        prompt_tokens=100,
        cached_tokens=64,
        generated_tokens=3,
        seconds=0.06,
    )


def test_a_request_is_counted_where_it_belongs() -> None:
    metrics = GatewayMetrics()
    one_request(metrics)
    one_request(metrics)
    one_request(metrics, outcome="engine_died")
    seen = samples(metrics)
    total = "ratoon_requests_total"
    assert value(seen, total, route="/v1/completions", outcome="stop") == 2
    assert value(seen, total, route="/v1/completions", outcome="engine_died") == 1
    assert value(seen, "ratoon_prompt_tokens_total") == 300
    assert value(seen, "ratoon_cached_tokens_total") == 192
    assert value(seen, "ratoon_generated_tokens_total") == 9
    assert value(seen, "ratoon_queue_seconds_count") == 3
    assert value(seen, "ratoon_time_to_first_token_seconds_sum") == pytest.approx(0.09)
    assert value(seen, "ratoon_inter_token_latency_seconds_count") == 6
    assert value(seen, "ratoon_inter_token_latency_seconds_sum") == pytest.approx(0.069)
    assert value(seen, "ratoon_request_seconds_count", route="/v1/completions") == 3
    assert value(seen, "ratoon_requests_running") == 0


def test_lost_charges_are_counted() -> None:
    metrics = GatewayMetrics()
    assert value(samples(metrics), "ratoon_charges_lost_total") == 0
    metrics.charge_lost()
    assert value(samples(metrics), "ratoon_charges_lost_total") == 1


@pytest.mark.parametrize("amounts", [[], [0.0025], [0.001, 0.0026, 0.2, 0.2, 81.0]])
def test_many_observations_are_as_many_single_ones(amounts: list[float]) -> None:
    registry = CollectorRegistry()
    together = BulkHistogram("a", "x", registry=registry, buckets=GAP_BUCKETS)
    one_by_one = Histogram("b", "x", registry=registry, buckets=GAP_BUCKETS)
    together.observe_all(amounts)
    for amount in amounts:
        one_by_one.observe(amount)
    a, b = [
        {
            (name.removeprefix(metric.name), *labels.items()): value
            for name, labels, value, *_ in metric.samples
            if not name.endswith("_created")
        }
        for metric in registry.collect()
    ]
    assert a == pytest.approx(b)


def test_processes_count_together_and_the_dead_count_on(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path;"
        "from gateway.telemetry.metrics import GatewayMetrics;"
        "from tests.gateway.telemetry.test_metrics import *;"
        "metrics = GatewayMetrics(Path(sys.argv[1])); one_request(metrics);"
        "metrics.started('/v1/completions'); print(metrics.render(None).decode())"
    )
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    pids = []
    for number in (1, 2):
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        text, _ = process.communicate(timeout=60)
        pids.append(process.pid)
        seen = parsed(text)
        assert value(seen, "ratoon_prompt_tokens_total") == 100 * number
        assert value(seen, "ratoon_inter_token_latency_seconds_count") == 2 * number
        assert value(seen, "ratoon_requests_running") == number, "nobody said that they ended"
    end_gauges(pids[0], tmp_path)
    seen = samples(GatewayMetrics(tmp_path))
    assert value(seen, "ratoon_requests_running") == 1
    total = "ratoon_requests_total"
    assert value(seen, total, route="/v1/completions", outcome="stop") == 2


def test_running_rises_and_falls() -> None:
    metrics = GatewayMetrics()
    metrics.started("a")
    metrics.started("a")
    assert value(samples(metrics), "ratoon_requests_running") == 2
    metrics.ended("a", "x", prompt_tokens=0, cached_tokens=0, generated_tokens=0, seconds=0)
    assert value(samples(metrics), "ratoon_requests_running") == 1


def test_a_refusal_is_counted_by_code_and_runs_nothing() -> None:
    metrics = GatewayMetrics()
    metrics.refused("/v1/models", "invalid_api_key")
    seen = samples(metrics)
    refused = "ratoon_requests_refused_total"
    assert value(seen, refused, route="/v1/models", code="invalid_api_key") == 1
    assert value(seen, "ratoon_requests_running") == 0
    assert not [name for name, _ in seen if name == "ratoon_requests_total"]


def test_an_observation_falls_into_its_bucket() -> None:
    metrics = GatewayMetrics()
    metrics.first_token(0.03)
    seen = samples(metrics)
    bucket = "ratoon_time_to_first_token_seconds_bucket"
    assert value(seen, bucket, le="0.02") == 0
    assert value(seen, bucket, le="0.04") == 1
    assert value(seen, bucket, le="+Inf") == 1


def test_the_engine_s_counters_are_those_of_the_scrape() -> None:
    metrics = GatewayMetrics()
    seen = samples(metrics, some_stats())
    assert value(seen, "ratoon_engine_up") == 1
    assert value(seen, "ratoon_engine_running") == 3
    assert value(seen, "ratoon_engine_waiting") == 4
    assert value(seen, "ratoon_preemptions_total") == 5
    assert value(seen, "ratoon_engine_steps_total") == 600
    assert value(seen, "ratoon_engine_dropped_frames_total") == 8
    assert value(seen, "ratoon_engine_generated_tokens_total") == 700
    assert value(seen, "ratoon_engine_uptime_seconds") == 12.5
    assert value(seen, "ratoon_tree_nodes") == 21
    assert value(seen, "ratoon_tree_depth") == 6
    assert value(seen, "ratoon_retained_tokens") == 0
    assert value(seen, "ratoon_block_size_tokens") == 16
    assert value(seen, "ratoon_prefix_queried_tokens_total") == 1000
    assert value(seen, "ratoon_prefix_hit_tokens_total") == 250
    assert value(seen, "ratoon_prefix_computed_tokens_total") == 750
    flows = {"ada": FlowStats(retained_blocks=2), "bob": FlowStats(retained_blocks=3)}
    later = samples(metrics, replace(some_stats(), running=9, flows=flows))
    assert value(later, "ratoon_engine_running") == 9
    assert value(later, "ratoon_retained_tokens") == 80


def test_the_pool_s_states_add_up_to_the_pool() -> None:
    stats = some_stats()
    seen = samples(GatewayMetrics(), stats)
    states = {key[1][0][1]: count for key, count in seen.items() if key[0] == "ratoon_pool_blocks"}
    assert states == {"free": 60, "evictable": 30, "leased": 10}
    assert sum(states.values()) == stats.pool.total


def test_without_an_engine_the_exposition_says_so_and_shows_no_stale_number() -> None:
    metrics = GatewayMetrics()
    metrics.render(some_stats())
    seen = samples(metrics, None)
    assert value(seen, "ratoon_engine_up") == 0
    absent = ("ratoon_engine_running", "ratoon_pool_blocks", "ratoon_preemptions_total")
    assert not [name for name, _ in seen if name in absent]
    assert value(seen, "ratoon_prompt_tokens_total") == 0


def test_windows_that_the_engine_does_not_report_are_left_out() -> None:
    seen = samples(GatewayMetrics(), replace(some_stats(), windows={}))
    assert not [name for name, _ in seen if name.startswith("ratoon_prefix")]
    assert value(seen, "ratoon_engine_up") == 1


def test_names_carry_the_prefix_and_their_unit_and_no_family_comes_twice() -> None:
    metrics = GatewayMetrics()
    one_request(metrics)
    metrics.refused("a", "b")
    text = metrics.render(some_stats()).decode()
    families = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    names = [name for name, _ in families]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"ratoon_[a-z_]+", name) for name in names)
    assert all(name.endswith("_seconds") for name, kind in families if kind == "histogram")
    assert all(name.endswith("_total") for name, kind in families if kind == "counter")
    assert len(re.findall(r"^# HELP ", text, re.MULTILINE)) == len(names)


def test_the_tiers_are_counted_by_tier_and_direction() -> None:
    seen = samples(GatewayMetrics(), some_stats(tiers=some_tiers()))
    ways = {"source": "host", "target": "device"}
    assert value(seen, "ratoon_tier_hit_tokens_total", tier="disk") == 3
    assert value(seen, "ratoon_tier_blocks", tier="host", state="free") == 5
    assert value(seen, "ratoon_tier_loads_blocks_total", tier="host", choice="refused") == 6
    assert value(seen, "ratoon_tier_evicted_blocks_total", tier="host", reason="no_room") == 7
    assert value(seen, "ratoon_moved_bytes_total", **ways) == 30
    assert value(seen, "ratoon_move_seconds_total", **ways) == 0.5
    assert value(seen, "ratoon_failed_moves_total", **ways) == 1
    assert value(seen, "ratoon_disk_up") == 0
    assert value(seen, "ratoon_disk_quarantines_total") == 6
    assert value(seen, "ratoon_disk_full") == 1
    assert value(seen, "ratoon_disk_given_up_total") == 8


def test_no_label_names_a_tenant() -> None:
    metrics = GatewayMetrics()
    one_request(metrics)
    metrics.refused("a", "b")
    flows = {"tn_secret": FlowStats(requests=3, blocks_held=9)}
    stats = some_stats(flows=flows, tiers=some_tiers())
    labels = {label for _, pairs in samples(metrics, stats) for label, _ in pairs}
    assert labels == LABELS
    assert b"tn_secret" not in metrics.render(stats)


def test_two_instances_share_nothing_and_touch_no_global_registry() -> None:
    before = {family.name for family in REGISTRY.collect()}
    one, two = GatewayMetrics(), GatewayMetrics()
    one_request(one)
    assert value(samples(one), "ratoon_prompt_tokens_total") == 100
    assert value(samples(two), "ratoon_prompt_tokens_total") == 0
    assert {family.name for family in REGISTRY.collect()} == before


@pytest.mark.parametrize(
    "buckets", [FIRST_TOKEN_BUCKETS, GAP_BUCKETS, QUEUE_BUCKETS, REQUEST_BUCKETS]
)
def test_buckets_rise(buckets: tuple[float, ...]) -> None:
    assert list(buckets) == sorted(set(buckets))


def test_a_hostile_label_value_stays_one_value() -> None:
    metrics = GatewayMetrics()
    metrics.refused('a"} 1\nfake_total 9', "x")
    seen = samples(metrics)
    assert value(seen, "ratoon_requests_refused_total", route='a"} 1\nfake_total 9', code="x") == 1
    assert not [name for name, _ in seen if name.startswith("fake")]
