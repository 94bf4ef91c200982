"""The engines registered in the state, which join the replicas and leave when removed.

    registered --> joins, and is connected to --removed--> gets nothing new --idle--> dropped
                        ^                                        |
                        `------------ registered again ----------'

An engine with heartbeats is forgotten when no new heartbeat has come for LEASE_S and the engine is
not connected. While connected it counts as alive, even without heartbeats. Heartbeats are compared
with each other and never with a clock, since another machine's clock may be wrong.

While the state does not answer, no engine joins or leaves. `cli/cluster/host.py` and the operator
register engines.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from engine.link.address import TCP
from engine.link.tcp.curve import BadLinkKey
from gateway.errors import Unavailable
from gateway.processes.periodic import repeated
from gateway.replicas.engine_set import EngineSet
from gateway.replicas.members import ReplicaEngine
from gateway.state.records import RegisteredEngine
from gateway.state.store import EngineRegistry

LOOK_S = 1.0
LEASE_S = 20.0

_LOG = logging.getLogger(__name__)


class FoundEngine(ReplicaEngine, Protocol):
    """The client of a found replica, such as an `EngineClient`.

    The client is started when the replica is found.
    """

    async def start(self) -> None:
        """Begin connecting to the engine."""
        ...

    async def close(self) -> None:
        """Close the connection to the engine."""
        ...


Connect = Callable[[str, str], FoundEngine]
"""A function from name and address to a client. Raises ValueError or BadLinkKey on failure."""


class Leases:
    """The leases of engines, prolonged by heartbeats. `monotonic` returns seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        # latest heartbeat of each address, and the time since which it has not changed
        self._seen: dict[str, tuple[float | None, float]] = {}

    def alive(self, registered: list[RegisteredEngine]) -> set[str]:
        """Return the addresses of engines that an operator added, or that still send heartbeats."""
        now = self._monotonic()
        before, self._seen = self._seen, {}
        for one in registered:
            beat, since = before.get(one.address, (None, now))
            self._seen[one.address] = (one.beat_at, since if beat == one.beat_at else now)
        return {
            one.address
            for one in registered
            if one.beat_at is None or now - self._seen[one.address][1] < LEASE_S
        }


class FoundEngines:
    """The keeper that adds and removes replicas as the state lists them. Used in one event loop."""

    def __init__(
        self,
        engines: EngineSet,
        registry: EngineRegistry,
        connect: Connect,
        monotonic: Callable[[], float],
    ) -> None:
        self._engines = engines
        self._registry = registry
        self._connect = connect
        self._leases = Leases(monotonic)
        self._clients: dict[str, FoundEngine] = {}
        self._unreachable: set[str] = set()  # addresses that cannot be reached and are logged

    async def look(self) -> None:
        """Connect to engines that the state lists, and drop the other engines."""
        try:
            registered = await self._registry.registered_engines()
        except Unavailable:
            return
        alive = self._leases.alive(registered)
        wanted = {}
        for one in registered:
            name = replica_name(one.address)
            client = self._clients.get(name)
            if one.address in alive or (client is not None and client.welcome is not None):
                wanted[name] = one.address
        self._unreachable &= set(wanted.values())
        for name, address in wanted.items():
            await self._join(name, address)
        for name in [name for name in self._clients if name not in wanted]:
            await self._leave(name)

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Read the state every LOOK_S seconds while this context is open. Then close clients."""
        try:
            async with repeated(self._look_and_wait, "found-engines"):
                yield
        finally:
            await asyncio.gather(*(client.close() for client in self._clients.values()))

    async def _look_and_wait(self) -> None:
        await self.look()
        await asyncio.sleep(LOOK_S)

    async def _join(self, name: str, address: str) -> None:
        client = self._clients.get(name)
        if client is None:
            try:
                client = self._connect(name, address)
            except (ValueError, BadLinkKey) as error:  # the next look tries the engine again
                self._refuse(address, error)
                return
            self._clients[name] = client
            await client.start()
            _LOG.info("replica %s is registered", name)
        self._engines.join(name, client)

    def _refuse(self, address: str, error: ValueError | BadLinkKey) -> None:
        if address not in self._unreachable:
            self._unreachable.add(address)
            _LOG.error("the engine registered at %s is left out for now: %s", address, error)

    async def _leave(self, name: str) -> None:
        if self._engines.leave(name) is None:
            return
        _LOG.info("replica %s is no longer registered, and has nothing left to do", name)
        await self._clients.pop(name).close()


def replica_name(address: str) -> str:
    """Return a found replica's name: `host:port`, or its socket's path."""
    return address.removeprefix(TCP)
