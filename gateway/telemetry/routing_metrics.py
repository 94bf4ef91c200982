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
            "Requests sent to another replica before they began, by the replica that they left",
            ("replica",),
            registry=registry,
        )
        self._fetches = Counter(
            "ratoon_fetches_chosen",
            "Fetches from another replica that the router chose: of a cached prefix, of a prompt "
            "that is computed there now, or of a published prefix",
            ("reason",),
            registry=registry,
        )
        self._snapshots = Counter(
            "ratoon_cache_snapshots",
            "Snapshots of its cache that a replica sent: one a connection, more after lost events",
            ("replica",),
            registry=registry,
        )
        self._alone = Counter(
            "ratoon_routed_alone",
            "Requests that a worker routed by its own requests alone, since the router process "
            "did not answer",
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
            "From sending these requests to their first token, as measured",
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
