"""The gateway's Prometheus metrics.

Two sources meet in one exposition: what this process measures of its requests, and the
engine's own counters as of the scrape (`engine_metrics`). No label names a tenant or a key:
that would tell tenants about each other, and grow without bound. `route` must be a route's
template, never a raw path, for the same reason.

Every `started` is followed by exactly one `ended`; a request that was refused before it
started is counted by `refused` alone. Times are seconds, sizes tokens or blocks.
"""

from __future__ import annotations

import collections
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from engine.link.interface import ReplicaHealth
from engine.link.stats_messages import EngineStats
from gateway.replicas.joined_stats import each_replica
from gateway.state.faults import STATUSES
from gateway.telemetry.engine_metrics import EngineCollector, ReplicaCollector
from gateway.telemetry.routing_metrics import RoutingMetrics
from gateway.telemetry.vllm_names import VllmNames

# The boundaries that inference dashboards know, and finer ones below them: a cached prefix
# answers in milliseconds.
# fmt: off
FIRST_TOKEN_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)
GAP_BUCKETS = (
    0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)
REQUEST_BUCKETS = (
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)
QUEUE_BUCKETS = (0.001, 0.005, *REQUEST_BUCKETS)
# fmt: on


class BulkHistogram(Histogram):
    """A histogram that takes many observations at the cost of a few."""

    @property
    def name(self) -> str:
        """The metric's name."""
        return str(self._name)

    @property
    def bounds(self) -> tuple[float, ...]:
        """The buckets' upper bounds; the last is infinite."""
        return tuple(self._upper_bounds)

    def counts(self) -> tuple[float, ...]:
        """What this process has observed, by bucket."""
        return tuple(bucket.get() for bucket in self._buckets)

    def observe_all(self, amounts: Sequence[float]) -> None:
        """What `observe` of each amount does."""
        self._sum.inc(sum(amounts))
        buckets = (bisect_left(self._upper_bounds, amount) for amount in amounts)
        for bucket, count in collections.Counter(buckets).items():
            self._buckets[bucket].inc(count)


class Latencies(NamedTuple):
    """What this gateway has counted by bucket, whose upper bounds are in seconds."""

    first_token_bounds: tuple[float, ...]
    first_token: tuple[float, ...]
    gap_bounds: tuple[float, ...]
    gap: tuple[float, ...]


class GatewayMetrics:
    """The numbers of one gateway, on a registry of their own.

    Each process counts in a file of its own, and the one that answers a scrape adds them up.
    The file of a process that died still counts, so no counter ever falls.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, shared: Path | None = None, vllm_model: str | None = None) -> None:
        """Count alone, or with other processes in the directory `shared`.

        Then each has been started with PROMETHEUS_MULTIPROC_DIR set to it. With `vllm_model`, the
        model's name, what vLLM has as well is shown under its names, too.
        """
        self._vllm_model = vllm_model
        self._shared = shared
        registry = CollectorRegistry()
        self._registry = registry if shared is None else _added_up(shared)
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self._running = gauge(
            "ratoon_requests_running", "Requests being answered", multiprocess_mode="livesum"
        )
        self._requests = counter(
            "ratoon_requests", "Requests answered, by how they ended", ("route", "outcome")
        )
        self._refused = counter(
            "ratoon_requests_refused",
            "Requests refused before they started, by error code",
            ("route", "code"),
        )
        self._prompt_tokens = counter("ratoon_prompt_tokens", "Prompt tokens of answered requests")
        self._cached_tokens = counter(
            "ratoon_cached_tokens", "Prompt tokens that came from the cache"
        )
        self._generated_tokens = counter("ratoon_generated_tokens", "Tokens generated")
        self._queue = histogram(
            "ratoon_queue_seconds", "Wait in the engine's queue", buckets=QUEUE_BUCKETS
        )
        self._first_token = BulkHistogram(
            "ratoon_time_to_first_token_seconds",
            "From the request's arrival to its first token",
            registry=registry,
            buckets=FIRST_TOKEN_BUCKETS,
        )
        self._gap = BulkHistogram(
            "ratoon_inter_token_latency_seconds",
            "Between two tokens of one choice",
            registry=registry,
            buckets=GAP_BUCKETS,
        )
        self._faults = gauge(
            "ratoon_fault",
            "1 while there is a fault of what the gateway keeps, by its status at /readyz",
            ("status",),
            multiprocess_mode="livemax",
        )
        self.faults(set())
        self.routing = RoutingMetrics(registry, FIRST_TOKEN_BUCKETS)
        self._seconds = histogram(
            "ratoon_request_seconds",
            "From the request's arrival to its end",
            ("route",),
            buckets=REQUEST_BUCKETS,
        )

    def started(self, route: str) -> None:
        """A request was admitted on `route`."""
        self._seconds.labels(route)  # shows the route with zeros before its first end
        self._running.inc()

    def queued(self, seconds: float) -> None:
        """A sequence left the engine's queue after `seconds`."""
        self._queue.observe(seconds)

    def first_token(self, seconds: float) -> None:
        """The first token of a request came `seconds` after the request."""
        self._first_token.observe(seconds)

    def gaps(self, seconds: Sequence[float]) -> None:
        """Tokens came `seconds` after the ones before them."""
        if seconds:
            self._gap.observe_all(seconds)

    def ended(
        self,
        route: str,
        outcome: str,
        *,
        prompt_tokens: int,
        cached_tokens: int,
        generated_tokens: int,
        seconds: float,
    ) -> None:
        """A started request ended; `outcome` is a finish reason or an error's code."""
        self._running.dec()
        self._requests.labels(route, outcome).inc()
        self._prompt_tokens.inc(prompt_tokens)
        self._cached_tokens.inc(cached_tokens)
        self._generated_tokens.inc(generated_tokens)
        self._seconds.labels(route).observe(seconds)

    def refused(self, route: str, code: str) -> None:
        """A request was refused before it started."""
        self._refused.labels(route, code).inc()

    def latencies(self) -> Latencies:
        """Times to the first token and between tokens; of all processes that count together.

        Then it takes some milliseconds, and may be called in a thread.
        """
        first, gap = self._first_token, self._gap
        if self._shared is None:
            return Latencies(first.bounds, first.counts(), gap.bounds, gap.counts())
        counts = _counts_of_all(self._shared, (first, gap))
        return Latencies(first.bounds, counts[0], gap.bounds, counts[1])

    def faults(self, statuses: set[str]) -> None:
        """The faults there are now."""
        for status in STATUSES:
            self._faults.labels(status).set(status in statuses)

    def render(
        self, stats: EngineStats | None, replicas: Mapping[str, ReplicaHealth] | None = None
    ) -> bytes:
        """The exposition in Prometheus' text format; `stats` is None while no engine answers.

        `replicas` are the engines where there are several, of which the stats are joined.
        """
        engine, each = CollectorRegistry(), CollectorRegistry()
        engine.register(EngineCollector(stats))
        each.register(
            ReplicaCollector(replicas or {}, {} if stats is None else each_replica(stats))
        )
        shown = generate_latest(self._registry) + generate_latest(engine) + generate_latest(each)
        if self._vllm_model is None:
            return shown
        again = CollectorRegistry()
        collected = chain(self._registry.collect(), engine.collect())
        again.register(VllmNames(list(collected), self._vllm_model))
        return shown + generate_latest(again)


def _counts_of_all(shared: Path, histograms: Sequence[BulkHistogram]) -> list[tuple[float, ...]]:
    """What all processes have observed, by bucket of each of the `histograms`."""
    files = [str(path) for path in shared.glob("histogram_*.db")]
    merged = MultiProcessCollector.merge(files, accumulate=False)  # type: ignore[no-untyped-call]
    found = {
        (metric.name, float(sample.labels["le"])): sample.value
        for metric in merged
        for sample in metric.samples
        if "le" in sample.labels
    }
    return [tuple(found.get((one.name, bound), 0.0) for bound in one.bounds) for one in histograms]


def _added_up(shared: Path) -> CollectorRegistry:
    """What all processes have counted in the directory `shared`."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(shared))  # type: ignore[no-untyped-call]
    return registry
