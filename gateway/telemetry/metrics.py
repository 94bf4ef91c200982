"""The gateway's Prometheus metrics.

An exposition has two sources. These are this process's measurements of its requests, and the
engine's own counters at the scrape (`engine_metrics`). No label names a tenant or a key. Such
labels would tell tenants about each other, and grow without limit. `route` must be a route's
template, since raw paths grow without limit too.

Every `started` is followed by exactly one `ended`. A request that was refused before it started is
counted only by `refused`. Times are seconds, and sizes are tokens or blocks.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from engine.link.interface import ReplicaHealth
from engine.link.stats.engine_stats import EngineStats
from gateway.replicas.joined_stats import each_replica
from gateway.state.faults import STATUSES
from gateway.telemetry.engine_metrics import EngineCollector
from gateway.telemetry.instruments import (
    BulkHistogram,
    fault_gauge,
    lost_charges,
    request_counters,
    timings,
    token_counters,
)
from gateway.telemetry.replica_metrics import ReplicaCollector
from gateway.telemetry.routing_metrics import RoutingMetrics
from gateway.telemetry.vllm_names import VllmNames


class Latencies(NamedTuple):
    """The gateway's latency counts by bucket, with the buckets' upper bounds in seconds."""

    first_token_bounds: tuple[float, ...]
    first_token: tuple[float, ...]
    gap_bounds: tuple[float, ...]
    gap: tuple[float, ...]


class GatewayMetrics:
    """The metrics of one gateway process, on a separate registry.

    If there are several processes, each counts in its own file. The process that answers a scrape
    adds up the files. The file of a process that died still counts, so no counter ever falls.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, shared: Path | None = None, vllm_model: str | None = None) -> None:
        """Count in this process alone, or with other processes through the directory `shared`.

        With `shared`, each process must have been started with PROMETHEUS_MULTIPROC_DIR set to this
        directory. With `vllm_model`, the model's name, metrics that vLLM also has are shown under
        vLLM's names too.
        """
        self._vllm_model = vllm_model
        self._shared = shared
        registry = CollectorRegistry()
        self._registry = registry if shared is None else _added_up(shared)
        self._requests = request_counters(registry)
        self._tokens = token_counters(registry)
        self._times = timings(registry)
        self._faults = fault_gauge(registry)
        self._lost = lost_charges(registry)
        self.routing = RoutingMetrics(registry)
        self.faults(set())

    def started(self, route: str) -> None:
        """Count a request that was admitted on `route`."""
        # creates the route's histogram, so that it shows zeros before a request ends
        self._times.request.labels(route)
        self._requests.running.inc()

    def queued(self, seconds: float) -> None:
        """Observe that a sequence left the engine's queue after `seconds`."""
        self._times.queue.observe(seconds)

    def first_token(self, seconds: float) -> None:
        """Observe that a request's first token came `seconds` after the request."""
        self._times.first_token.observe(seconds)

    def gaps(self, seconds: Sequence[float]) -> None:
        """Observe that tokens came `seconds` after the tokens before them."""
        if seconds:
            self._times.gap.observe_all(seconds)

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
        """Count the end of a started request. `outcome` is a finish reason or an error's code."""
        self._requests.running.dec()
        self._requests.ended.labels(route, outcome).inc()
        self._tokens.prompt.inc(prompt_tokens)
        self._tokens.cached.inc(cached_tokens)
        self._tokens.generated.inc(generated_tokens)
        self._times.request.labels(route).observe(seconds)

    def refused(self, route: str, code: str) -> None:
        """Count a request that was refused before it started."""
        self._requests.refused.labels(route, code).inc()

    def charge_lost(self) -> None:
        """Count a charge that could not be written and is lost."""
        self._lost.inc()

    def latencies(self) -> Latencies:
        """Return the latencies to the first token and between tokens, of all processes in `shared`.

        With `shared` the call takes some milliseconds, and may be made in a thread.
        """
        first, gap = self._times.first_token, self._times.gap
        if self._shared is None:
            return Latencies(first.bounds, first.counts(), gap.bounds, gap.counts())
        counts = _counts_of_all(self._shared, (first, gap))
        return Latencies(first.bounds, counts[0], gap.bounds, counts[1])

    def faults(self, statuses: set[str]) -> None:
        """Set the gauge to the present faults."""
        for status in STATUSES:
            self._faults.labels(status).set(status in statuses)

    def render(
        self, stats: EngineStats | None, replicas: Mapping[str, ReplicaHealth] | None = None
    ) -> bytes:
        """Write the metrics in Prometheus' text format. `stats` is None if there is no engine.

        If there are several engines, `replicas` lists them, and `stats` are their joined counters.
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
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(shared))  # type: ignore[no-untyped-call]
    return registry
