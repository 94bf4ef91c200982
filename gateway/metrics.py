"""What the gateway counts, in Prometheus' words.

Two sources meet in one exposition: what this process measures of its requests, and the
engine's own counters as of the scrape. No label names a tenant or a key: that would tell
tenants about each other, and grow without bound. `route` must be a route's template, never
a raw path, for the same reason.

Every `started` is followed by exactly one `ended`; a request that was refused before it
started is counted by `refused` alone. Times are seconds, sizes tokens or blocks.

Knows: names, buckets, units. Does not know: where the numbers come from.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from pathlib import Path

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from engine.messages import DiskStats, EngineStats, PoolStats, TierStats

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
    """A histogram that takes many observations at the price of a few."""

    def observe_all(self, amounts: Sequence[float]) -> None:
        """What `observe` of each amount does."""
        self._sum.inc(sum(amounts))
        tally = Tally(bisect_left(self._upper_bounds, amount) for amount in amounts)
        for bucket, count in tally.items():
            self._buckets[bucket].inc(count)


class GatewayMetrics:
    """The numbers of one gateway, on a registry of their own.

    Several processes count each in a file of its own, and whoever is asked adds them up. The
    file of a process that died counts on, so no counter ever falls.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, shared: Path | None = None) -> None:
        """Count alone, or with other processes in the directory `shared`.

        Then each has been started with PROMETHEUS_MULTIPROC_DIR set to it.
        """
        registry = CollectorRegistry()
        self._registry = registry
        if shared is not None:
            self._registry = CollectorRegistry()
            MultiProcessCollector(self._registry, str(shared))  # type: ignore[no-untyped-call]
        self._running = Gauge(
            "ratoon_requests_running",
            "Requests being answered",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._requests = Counter(
            "ratoon_requests",
            "Requests answered, by how they ended",
            ("route", "outcome"),
            registry=registry,
        )
        self._refused = Counter(
            "ratoon_requests_refused",
            "Requests refused before they started, by error code",
            ("route", "code"),
            registry=registry,
        )
        self._prompt_tokens = Counter(
            "ratoon_prompt_tokens", "Prompt tokens of answered requests", registry=registry
        )
        self._cached_tokens = Counter(
            "ratoon_cached_tokens", "Prompt tokens that came from the cache", registry=registry
        )
        self._generated_tokens = Counter(
            "ratoon_generated_tokens", "Tokens generated", registry=registry
        )
        self._queue = Histogram(
            "ratoon_queue_seconds",
            "Wait in the engine's queue",
            registry=registry,
            buckets=QUEUE_BUCKETS,
        )
        self._first_token = Histogram(
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
        self._seconds = Histogram(
            "ratoon_request_seconds",
            "From the request's arrival to its end",
            ("route",),
            registry=registry,
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
        """Tokens came so many seconds after the ones before them."""
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

    def render(self, stats: EngineStats | None) -> bytes:
        """The exposition in Prometheus' text format; `stats` is None while no engine answers."""
        engine = CollectorRegistry()
        engine.register(_EngineCollector(stats))
        return generate_latest(self._registry) + generate_latest(engine)


class _EngineCollector(Collector):
    """The engine's counters as of one scrape."""

    def __init__(self, stats: EngineStats | None) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        yield _gauge("ratoon_engine_up", "1 while an engine is connected", self._stats is not None)
        if self._stats is not None:
            yield from _engine(self._stats)
            yield from _pool(self._stats.pool)
            yield from _prefixes(self._stats)
            yield from _tiers(self._stats)
            yield from _moves(self._stats.tiers)
            if self._stats.tiers.disk is not None:
                yield from _disk(self._stats.tiers.disk)


def _engine(stats: EngineStats) -> Iterator[Metric]:
    yield _gauge("ratoon_engine_uptime_seconds", "Since the engine started", stats.uptime_s)
    yield _gauge("ratoon_engine_running", "Sequences in the batch", stats.running)
    yield _gauge("ratoon_engine_waiting", "Sequences in the queue", stats.waiting)
    yield _counter("ratoon_preemptions", "Sequences put back for want of blocks", stats.preemptions)
    yield _counter("ratoon_engine_steps", "Steps computed", stats.steps)
    yield _counter("ratoon_engine_generated_tokens", "Tokens sampled", stats.generated_tokens)


def _pool(pool: PoolStats) -> Iterator[Metric]:
    blocks = GaugeMetricFamily(
        "ratoon_pool_blocks", "Blocks of the device pool; the states add up to it", labels=["state"]
    )
    for state, count in (
        ("free", pool.free),
        ("evictable", pool.evictable),
        ("leased", pool.leased),
    ):
        blocks.add_metric([state], count)
    yield blocks
    yield _gauge("ratoon_block_size_tokens", "Tokens of one block", pool.block_size)


def _prefixes(stats: EngineStats) -> Iterator[Metric]:
    yield _gauge("ratoon_tree_nodes", "Nodes of the radix tree", stats.tree_nodes)
    yield _gauge("ratoon_tree_depth", "Depth of the radix tree in nodes", stats.tree_depth)
    window = stats.windows.get("all")
    if window is None:
        return
    yield _counter("ratoon_prefix_queried_tokens", "Tokens looked up", window.queried_tokens)
    yield _counter("ratoon_prefix_hit_tokens", "Tokens found", window.hit_tokens)
    yield _counter("ratoon_prefix_computed_tokens", "Tokens computed", window.computed_tokens)


def _tiers(stats: EngineStats) -> Iterator[Metric]:
    tiers = stats.tiers
    found = _counters("ratoon_tier_hit_tokens", "Prompt tokens found, by tier", ["tier"])
    for tier, tokens in (
        ("device", tiers.found.device),
        ("host", tiers.found.host),
        ("disk", tiers.found.disk),
    ):
        found.add_metric([tier], tokens)
    yield found
    blocks = GaugeMetricFamily(
        "ratoon_tier_blocks", "Blocks of the tiers below the device", labels=["tier", "state"]
    )
    loads = _counters(
        "ratoon_tier_loads_blocks", "Blocks found below and what was chosen", ["tier", "choice"]
    )
    for name, lower in tiers.lower.items():
        blocks.add_metric([name, "used"], lower.used)
        blocks.add_metric([name, "free"], lower.total - lower.used)
        loads.add_metric([name, "chosen"], lower.loads_chosen)
        loads.add_metric([name, "refused"], lower.loads_refused)
    yield blocks
    yield loads
    evictions = _counters(
        "ratoon_tier_evicted_blocks", "Copies given up, by tier and reason", ["tier", "reason"]
    )
    for tier, reasons in tiers.evictions.items():
        for reason, count in reasons.items():
            evictions.add_metric([tier, reason], count)
    yield evictions
    yield _gauge("ratoon_engine_loading", "Sequences whose prefix is on its way", stats.loading)
    yield _counter("ratoon_failed_loads", "Sequences that had to start over", stats.failed_loads)


def _moves(tiers: TierStats) -> Iterator[Metric]:
    ways = ["source", "target"]
    moved = _counters("ratoon_moved_bytes", "Copied between tiers", ways)
    seconds = _counters("ratoon_move_seconds", "In which copies were under way", ways)
    failed = _counters("ratoon_failed_moves", "Blocks that did not arrive", ways)
    for way in tiers.ways:
        labels = [way.source, way.target]
        moved.add_metric(labels, way.blocks * tiers.block_bytes)
        seconds.add_metric(labels, way.seconds)
        failed.add_metric(labels, way.failed)
    yield from (moved, seconds, failed)


def _disk(disk: DiskStats) -> Iterator[Metric]:
    yield _gauge("ratoon_disk_up", "1 while blocks go to disk and back", disk.state == "up")
    yield _gauge("ratoon_disk_bytes", "Of the disk tier's file", disk.bytes)
    yield _gauge("ratoon_disk_records", "Blocks in it", disk.records)
    yield _counter("ratoon_disk_lost", "Records that were not what was asked for", disk.lost)
    yield _counter("ratoon_disk_refused", "Writes that found no room", disk.refused)
    yield _counter("ratoon_disk_late", "Reads that missed their deadline", disk.late)
    yield _counter("ratoon_disk_quarantines", "Files set aside", disk.quarantines)
    yield _counter("ratoon_disk_failures", "Deaths of the disk's process", disk.failures)


def _counters(name: str, text: str, labels: list[str]) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=labels)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)
