"""The counters of each of several engines as Prometheus metrics, labelled with the engine."""

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from engine.link.interface import ReplicaHealth
from engine.link.stats.engine_stats import EngineStats
from gateway.telemetry.engine_metrics import metrics_of


class ReplicaCollector(Collector):
    """The counters of each of several engines, named like their sums, but with `ratoon_replica_`.

    When an engine restarts, its counters begin at zero, as Prometheus expects. The sums over all
    engines fall by this engine's part, and not to zero.
    """

    def __init__(
        self, replicas: Mapping[str, ReplicaHealth], counted: Mapping[str, EngineStats]
    ) -> None:
        self._replicas = replicas
        self._counted = counted

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all replicas if there are several engines."""
        if not self._replicas:
            return
        up = GaugeMetricFamily(
            "ratoon_replica_up", "1 while the replica takes requests", labels=["replica"]
        )
        known = GaugeMetricFamily(
            "ratoon_replica_known_blocks",
            "Blocks that the gateway knows the replica to have cached, in any tier",
            labels=["replica"],
        )
        for name, health in self._replicas.items():
            up.add_metric([name], health.state == "ready")
            known.add_metric([name], health.known_blocks)
        yield from (up, known)
        families: dict[str, Metric] = {}
        for name, stats in self._counted.items():
            for one in metrics_of(stats):
                family = families.setdefault(one.name, _empty(one))
                family.samples += [_of_replica(sample, name) for sample in one.samples]
        yield from families.values()


def _empty(family: Metric) -> Metric:
    return Metric(_replica_name(family.name), f"{family.documentation}, by replica", family.type)


def _of_replica(sample: Sample, replica: str) -> Sample:
    return sample._replace(
        name=_replica_name(sample.name), labels={"replica": replica, **sample.labels}
    )


def _replica_name(name: str) -> str:
    return "ratoon_replica_" + name.removeprefix("ratoon_").removeprefix("engine_")
