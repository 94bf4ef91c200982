"""The counts of routing decisions, and their metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.link.cache_events import Added, CacheEvents, Cleared
from engine.link.interface import ReplicaHealth
from gateway.replicas.engine_set import EngineSet
from gateway.routing.route import OwnRouting
from gateway.routing.routers.first_token import FirstTokenRouter
from gateway.telemetry.metrics import GatewayMetrics
from tests.engine.rigs.rig import Clock
from tests.gateway.replicas.rig import Fleet, asking


@dataclass
class Predicting(Fleet):
    """A fleet with the router that is used in service."""

    first_token: FirstTokenRouter = field(default_factory=lambda: FirstTokenRouter(Clock()))

    def __post_init__(self) -> None:
        by_name = {replica.name: replica for replica in self.replicas}
        self.set = EngineSet(by_name, OwnRouting(self.first_token), self.notes)


async def test_each_first_token_is_counted_beside_its_prediction() -> None:
    fleet = Predicting()
    async with asking(fleet, 3) as asked:
        assert all(one.is_over for one in asked)
    assert len(fleet.notes.firsts) == 3
    for predicted, real in fleet.notes.firsts:
        assert predicted > 0
        assert real >= 0


def test_snapshots_are_counted_and_what_is_known_of_each_is_shown() -> None:
    fleet = Predicting()
    _ = fleet.set.welcome
    added = Added("device", bytes(range(32)))
    fleet.set.heard("a", CacheEvents(number=0, changes=(Cleared(), added)))
    fleet.set.heard("a", CacheEvents(number=1, changes=(Added("host", bytes(range(16, 48))),)))
    assert fleet.notes.snapshots == ["a"], "what changes is none"
    known = {name: health.known_blocks for name, health in fleet.set.replicas.items()}
    assert known == {"a": 3, "b": 0, "c": 0}


def test_a_gateway_shows_it_all() -> None:
    metrics = GatewayMetrics()
    metrics.routing.fetch("prompt")
    metrics.routing.snapshot("1")
    metrics.routing.predicted(0.25, 0.5)
    health = {"1": ReplicaHealth("ready", "", "id", "decode", 7)}
    lines = metrics.render(None, health).decode().splitlines()
    for line in (
        'ratoon_fetches_chosen_total{reason="prompt"} 1.0',
        'ratoon_cache_snapshots_total{replica="1"} 1.0',
        "ratoon_predicted_first_token_seconds_sum 0.25",
        "ratoon_routed_first_token_seconds_sum 0.5",
        'ratoon_replica_known_blocks{replica="1"} 7.0',
    ):
        assert line in lines
