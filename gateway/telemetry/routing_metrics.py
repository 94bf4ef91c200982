"""The metrics of a gateway's routing among several engines: `RoutingNotes`.

The gauge of each engine's known blocks is made at the scrape (`engine_metrics`).
"""

from prometheus_client import CollectorRegistry, Counter, Histogram

from gateway.replicas.routing_notes import FetchReason
from gateway.telemetry.instruments import FIRST_TOKEN_BUCKETS


class RoutingMetrics:
    """The routing counters of one gateway process, on its common registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._moved = Counter(
            "ratoon_requests_moved",
            "Requests that were sent to another replica before they began, by the one they left",
            ("replica",),
            registry=registry,
        )
        self._fetches = Counter(
            "ratoon_fetches_chosen",
            "Times a replica was told to fetch blocks from another one: of a cached prefix, of a "
            "prompt that is computed there now, or of a published prefix",
            ("reason",),
            registry=registry,
        )
        self._snapshots = Counter(
            "ratoon_cache_snapshots",
            "Times a replica has told its whole cache: once a connection, and after missing events",
            ("replica",),
            registry=registry,
        )
        self._alone = Counter(
            "ratoon_routed_alone",
            "Requests whose replica a worker chose by its own requests alone, since the router "
            "process did not answer",
            registry=registry,
        )
        self._predicted = Histogram(
            "ratoon_predicted_first_token_seconds",
            "From sending a request to a replica to its first token, as the router predicted",
            registry=registry,
            buckets=FIRST_TOKEN_BUCKETS,
        )
        self._real = Histogram(
            "ratoon_routed_first_token_seconds",
            "The same of the same requests, as it was",
            registry=registry,
            buckets=FIRST_TOKEN_BUCKETS,
        )

    def moved(self, replica: str) -> None:
        self._moved.labels(replica).inc()

    def fetch(self, reason: FetchReason) -> None:
        self._fetches.labels(reason).inc()

    def predicted(self, predicted_s: float, real_s: float) -> None:
        self._predicted.observe(predicted_s)
        self._real.observe(real_s)

    def routed_alone(self) -> None:
        self._alone.inc()

    def snapshot(self, replica: str) -> None:
        self._snapshots.labels(replica).inc()
