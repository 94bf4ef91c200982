"""Several engines as one `Engine`, the object that the rest of the gateway calls.

`serving` answers requests, and `queries` answers queries.

Elsewhere: how requests are sent to a replica (`serving`).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from engine.link.cache_events import CacheEvents, Cleared
from engine.link.event_messages import Finished, Tokens
from engine.link.interface import OnEnd, ReplicaHealth, Restarted
from engine.link.messages import FlowQuota, Generate, Welcome
from gateway.processes.periodic import repeated
from gateway.replicas.first_fetches import FirstFetches
from gateway.replicas.members import Members, ReplicaEngine
from gateway.replicas.queries import ReplicaQueries
from gateway.replicas.routing_notes import RoutingNotes
from gateway.replicas.serving import Serving
from gateway.routing.route import Routing

LOOK_S = 0.25  # seconds after which unbegun requests are taken from a silent replica


class EngineSet(ReplicaQueries):
    """The replicas that one gateway process uses. Used in one event loop."""

    def __init__(
        self,
        engines: Mapping[str, ReplicaEngine],
        routing: Routing,
        notes: RoutingNotes | None = None,
    ) -> None:
        self._routing = routing
        self._members = Members(engines, routing.gone)
        self._serving = Serving(self._members, routing, notes)
        super().__init__(
            self._members, FirstFetches(self._members, routing, lambda: self._serving.notes)
        )
        # the cache's division among flows; None: not divided yet
        self._flows: Mapping[str, FlowQuota] | None = None

    def count_with(self, notes: RoutingNotes) -> None:
        """Count routing decisions in `notes` from now on."""
        self._serving.notes = notes

    @property
    def welcome(self) -> Welcome | None:
        """One `Welcome` that describes all replicas; None while no replica is connected.

        `engine_id` names all ready replicas, so it changes when a replica comes or goes.
        """
        return self._members.welcome

    @property
    def is_stalled(self) -> bool:
        """True if no replica is ready, but at least one replica is stalled."""
        return self._members.is_stalled

    @property
    def handshake_error(self) -> None:
        """None, since handshake errors are reported for each replica."""
        return None

    @property
    def router_answers(self) -> bool | None:
        """True if the router process answers; None without a router process."""
        return self._routing.router_answers

    @property
    def replicas(self) -> Mapping[str, ReplicaHealth]:
        """The state of each replica."""
        return {
            name: replace(one, known_blocks=self._routing.known_blocks(name))
            for name, one in self._members.health().items()
        }

    def generate(
        self, request: Generate, on_end: OnEnd | None = None
    ) -> AsyncGenerator[Tokens | Finished | Restarted, None]:
        """Generate an answer. A request without a first token may move to another replica."""
        return self._serving.generate(request, on_end)

    def partition(self, flows: Mapping[str, FlowQuota]) -> None:
        """Divide the cache of each replica, present or later, among these flows."""
        self._flows = flows
        for engine in self._members.engines.values():
            engine.partition(flows)

    def flush_recorded(self, flushes: Mapping[str, str | None]) -> None:
        """Have each replica do the recorded flushes that it has not done."""
        for engine in self._members.engines.values():
            engine.flush_recorded(flushes)

    def join(self, name: str, engine: ReplicaEngine) -> None:
        """Add a replica, or keep the replica of this name that was about to leave."""
        if self._flows is not None:
            engine.partition(self._flows)
        self._members.join(name, engine)

    def leave(self, name: str) -> ReplicaEngine | None:
        """Send a replica no new requests. Remove it and return its engine once it is idle.

        Returns None until then, and may be called again.
        """
        return self._members.leave(name)

    def listener(self, name: str) -> Callable[[CacheEvents], None] | None:
        """Return the listener to a replica's cache events.

        Returns None if the router receives these events itself.
        """
        return None if self._routing.hears_itself else partial(self.heard, name)

    def heard(self, replica: str, events: CacheEvents) -> None:
        """Pass on a change of a replica's cache to the router."""
        if replica not in self._members.engines:
            return
        self._members.look()  # tells the router first that the engine is new
        if events.changes and isinstance(events.changes[0], Cleared):
            self._serving.notes.snapshot(replica)
        self._routing.heard(replica, events)

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Watch the replicas while this context is open."""
        async with repeated(self._look, "replicas"):
            yield

    async def _look(self) -> None:
        self._members.look()
        self._serving.rescue()
        await asyncio.sleep(LOOK_S)
