"""Replicas join the set when engines are registered, and leave it when they are removed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from engine.link.messages import FlowQuota
from engine.link.tcp.curve import BadLinkKey
from gateway.errors import Unavailable
from gateway.replicas.engine_set import EngineSet
from gateway.replicas.finding import LEASE_S, FoundEngines
from gateway.routing.route import OwnRouting
from gateway.state.records import RegisteredEngine
from tests.doubles.engine.fake_engine import WELCOME, hanging_at
from tests.doubles.replicas.found_replica import FoundReplica
from tests.gateway.replicas.rig import Fleet, NotingRouter, asking, served_once, settled
from tests.gateway.state.memory_store import MemoryStore
from tests.gateway.support.manual_clock import ManualClock

NO_ADDRESS = "tcp://nowhere"


class MovingStore(MemoryStore):
    """A store whose server can be unreachable."""

    is_away = False

    async def registered_engines(self) -> list[RegisteredEngine]:
        if self.is_away:
            raise Unavailable("away", retry_after_s=1.0)
        return await super().registered_engines()


@dataclass
class Found:
    """A fleet that has no replicas until engines are registered."""

    fleet: Fleet = field(default_factory=lambda: Fleet([]))
    store: MovingStore = field(default_factory=MovingStore)
    clock: ManualClock = field(default_factory=ManualClock)
    clients: list[FoundReplica] = field(default_factory=list)
    has_bad_key: bool = False
    fingerprint: bytes = WELCOME.fingerprint  # fingerprint of the engines that register later

    def __post_init__(self) -> None:
        self.finding = FoundEngines(self.fleet.set, self.store, self._connect, self.clock)

    def _connect(self, name: str, address: str) -> FoundReplica:
        if address == NO_ADDRESS:
            raise ValueError(f"{address} is not tcp://HOST:PORT")
        if self.has_bad_key:
            raise BadLinkKey("link.key holds no key")
        client = FoundReplica(name, self.fingerprint)
        self.clients.append(client)
        self.fleet.replicas.append(client)
        return client

    async def register(self, *names: str, beat: float | None = None) -> None:
        for name in names:
            await self.store.register_engine(
                RegisteredEngine(address=f"tcp://{name}", added_at=0.0, beat_at=beat)
            )
        await self.finding.look()

    async def remove(self, name: str) -> None:
        await self.store.forget_engine(f"tcp://{name}")
        await self.finding.look()


async def test_engines_serve_as_they_are_registered_and_no_more_when_they_are_removed() -> None:
    found = Found()
    assert found.fleet.set.welcome is None
    await found.register("a:1")
    async with asking(found.fleet, 2) as asked:
        served_once(found.fleet, asked)
    await found.register("b:1")
    async with asking(found.fleet, 4) as asked:
        served_once(found.fleet, asked)
    assert found.fleet.served() == {"a:1": 4, "b:1": 2}
    await found.remove("a:1")
    assert found.fleet.states() == {"b:1": "ready"}
    async with asking(found.fleet, 3) as asked:
        served_once(found.fleet, asked)
    assert found.fleet.served() == {"a:1": 4, "b:1": 5}
    assert [(one.starts, one.closes) for one in found.clients] == [(1, 1), (1, 0)]
    assert ("gone", "a:1", "") in found.fleet.router.calls


async def test_one_that_leaves_ends_what_it_has_begun() -> None:
    found = Found()
    await found.register("a:1")
    client = found.clients[0]
    client.pace = hanging_at(3)
    async with asking(found.fleet) as [asked]:
        assert len(asked.tokens) == 3
        await found.remove("a:1")
        assert found.fleet.states() == {"a:1": "draining"}
        await found.finding.look()
        assert (asked.error, client.closes) == (None, 0)
        await found.register("a:1")
        assert found.fleet.states() == {"a:1": "ready"}, "it may come back before it has left"
        await found.remove("a:1")
    await found.finding.look()
    assert (found.fleet.states(), client.closes) == ({}, 1)


async def test_one_that_is_idle_and_gone_leaves_though_its_requests_wait_elsewhere() -> None:
    found = Found()
    await found.register("a:1", "b:1")
    found.clients[0].pace = hanging_at(0)
    async with asking(found.fleet) as [asked]:
        assert not asked.is_over, "the control"
        found.clients[0].die()
        await found.remove("a:1")
        await settled()
        served_once(found.fleet, [asked])
    assert found.fleet.states() == {"b:1": "ready"}


async def test_a_heartbeat_that_stops_forgets_an_engine_only_once_it_is_gone() -> None:
    found = Found()
    await found.register("a:1", "b:1", beat=5e9)  # a heartbeat from an engine with a wrong clock
    await found.register("hand:1")
    for _ in range(3):
        found.clock.advance(LEASE_S)
        await found.register("b:1", beat=found.clock())
    assert found.fleet.states() == {"a:1": "ready", "b:1": "ready", "hand:1": "ready"}
    for client in found.clients:
        client.die()
    await found.finding.look()
    assert found.fleet.states() == {"b:1": "absent", "hand:1": "absent"}, "both may come back"
    await found.register("a:1", beat=5e9 + 1)
    assert "a:1" in found.fleet.states()


async def test_once_the_last_of_a_model_has_left_another_model_s_engine_serves() -> None:
    found = Found()
    await found.register("old:1", "old:2")
    assert found.fleet.states() == {"old:1": "ready", "old:2": "ready"}
    found.fingerprint = b"new"
    await found.register("new:1")
    await found.remove("old:1")
    assert found.fleet.states() == {"old:2": "ready", "new:1": "refused"}, "the control"
    await found.remove("old:2")
    assert found.fleet.states() == {"new:1": "ready"}


async def test_while_the_state_is_away_nobody_leaves() -> None:
    found = Found()
    await found.register("a:1")
    found.store.engines.clear()
    found.store.is_away = True
    await found.finding.look()
    assert found.fleet.states() == {"a:1": "ready"}
    found.store.is_away = False
    await found.finding.look()
    assert found.fleet.states() == {}, "the control"


async def test_what_cannot_be_reached_is_said_once_and_keeps_nobody_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = Found()
    await found.register("nowhere", "a:1")
    await found.finding.look()
    assert found.fleet.states() == {"a:1": "ready"}
    assert [r.message for r in caplog.records if "left out" in r.message] == [
        f"the engine registered at {NO_ADDRESS} is left out for now: {NO_ADDRESS} is not tcp://HOST:PORT"
    ]


async def test_an_engine_joins_once_the_key_is_mended(caplog: pytest.LogCaptureFixture) -> None:
    found = Found(has_bad_key=True)
    await found.register("a:1")
    assert found.fleet.states() == {}
    assert "link.key holds no key" in caplog.text
    found.has_bad_key = False
    await found.finding.look()
    assert found.fleet.states() == {"a:1": "ready"}


async def test_one_that_joins_late_has_the_quotas_of_all() -> None:
    found = Found()
    flows = {"tn": FlowQuota()}
    await found.register("a:1")
    assert found.clients[0].flows is None, "the control"
    found.fleet.set.partition(flows)
    await found.register("b:1")
    assert [one.flows for one in found.clients] == [flows, flows]


def test_what_a_stranger_s_cache_holds_is_not_heard() -> None:
    router = NotingRouter()
    heard: list[str] = []
    router.heard = lambda replica, events: heard.append(replica)  # type: ignore[method-assign]
    EngineSet({}, OwnRouting(router)).heard("gone:1", None)  # type: ignore[arg-type]
    assert heard == []
