"""The metrics that a gateway measures itself: names, help texts, labels and buckets.

Times are seconds.

Elsewhere: what is shown (`metrics.py`).
"""

import collections
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# The bucket boundaries of inference dashboards, with finer boundaries below them. With a cached
# prefix an answer begins within milliseconds.
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
    """A histogram that adds many observations at little more cost than a single one."""

    @property
    def name(self) -> str:
        return str(self._name)

    @property
    def bounds(self) -> tuple[float, ...]:
        """The upper bounds of the histogram's buckets. The last is infinite."""
        return tuple(self._upper_bounds)

    def counts(self) -> tuple[float, ...]:
        """Return this process's counts by bucket."""
        return tuple(bucket.get() for bucket in self._buckets)

    def observe_all(self, amounts: Sequence[float]) -> None:
        """Observe each of the amounts."""
        self._sum.inc(sum(amounts))
        buckets = (bisect_left(self._upper_bounds, amount) for amount in amounts)
        for bucket, count in collections.Counter(buckets).items():
            self._buckets[bucket].inc(count)


@dataclass(frozen=True, slots=True)
class RequestCounters:
    """The counters of requests and of their outcomes."""

    running: Gauge
    ended: Counter
    refused: Counter


@dataclass(frozen=True, slots=True)
class TokenCounters:
    """The token counters of answered requests."""

    prompt: Counter
    cached: Counter
    generated: Counter


@dataclass(frozen=True, slots=True)
class Timings:
    """The histograms of requests' durations and of their parts."""

    queue: Histogram
    first_token: BulkHistogram
    gap: BulkHistogram
    request: Histogram


def request_counters(registry: CollectorRegistry) -> RequestCounters:
    """Create the request counters on `registry`."""
    return RequestCounters(
        running=Gauge(
            "ratoon_requests_running",
            "Requests being answered",
            multiprocess_mode="livesum",
            registry=registry,
        ),
        ended=Counter(
            "ratoon_requests",
            "Requests answered, by how they ended",
            ("route", "outcome"),
            registry=registry,
        ),
        refused=Counter(
            "ratoon_requests_refused",
            "Requests refused before they started, by error code",
            ("route", "code"),
            registry=registry,
        ),
    )


def token_counters(registry: CollectorRegistry) -> TokenCounters:
    """Create the token counters on `registry`."""

    def counter(name: str, words: str) -> Counter:
        return Counter(name, words, registry=registry)

    return TokenCounters(
        prompt=counter("ratoon_prompt_tokens", "Prompt tokens of answered requests"),
        cached=counter("ratoon_cached_tokens", "Prompt tokens that came from the cache"),
        generated=counter("ratoon_generated_tokens", "Tokens generated"),
    )


def timings(registry: CollectorRegistry) -> Timings:
    """Create the histograms of durations on `registry`."""
    return Timings(
        queue=Histogram(
            "ratoon_queue_seconds",
            "Wait in the engine's queue",
            registry=registry,
            buckets=QUEUE_BUCKETS,
        ),
        first_token=BulkHistogram(
            "ratoon_time_to_first_token_seconds",
            "From the request's arrival to its first token",
            registry=registry,
            buckets=FIRST_TOKEN_BUCKETS,
        ),
        gap=BulkHistogram(
            "ratoon_inter_token_latency_seconds",
            "Between two tokens of one choice; tokens of one step share its time equally",
            registry=registry,
            buckets=GAP_BUCKETS,
        ),
        request=Histogram(
            "ratoon_request_seconds",
            "From the request's arrival to its end",
            ("route",),
            registry=registry,
            buckets=REQUEST_BUCKETS,
        ),
    )


def lost_charges(registry: CollectorRegistry) -> Counter:
    """Create on `registry` the counter of lost charges."""
    return Counter(
        "ratoon_charges_lost",
        "Charges to limits and budgets that could not be written and are lost",
        registry=registry,
    )


def fault_gauge(registry: CollectorRegistry) -> Gauge:
    """Create on `registry` a gauge for each fault status: 1 while there is such a fault."""
    return Gauge(
        "ratoon_fault",
        "1 while the gateway's stored state has this fault, by its status at /readyz",
        ("status",),
        multiprocess_mode="livemax",
        registry=registry,
    )
