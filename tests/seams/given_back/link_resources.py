"""Resources for the games: waits for another process's events, replies or routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from engine.errors import EngineUnavailable
from engine.link.event_messages import Tokens
from engine.link.gateway_end.event_queue import EventQueue
from engine.link.gateway_end.queries import EngineQueries
from engine.link.query_messages import QueryMessage, Unpin, Unpinned
from gateway.router_process.channel import RouterChannel
from gateway.router_process.client import RouterClient
from gateway.router_process.messages import FromRouter, KnownBlocks
from gateway.router_process.service import RouterService
from gateway.routing.route import RouteQuestion, sent_by
from gateway.routing.routers.least_outstanding import LeastOutstandingRouter
from tests.gateway.routing.requests import request
from tests.seams.given_back.interleaving import WAIT_S, Resource


class Events(Resource):
    """Random use of `EventQueue`. Its readers must get each event once and in order."""

    def __init__(self) -> None:
        self.queue = EventQueue()
        self.put = self.taken = 0
        self.has_reader = False

    @asynccontextmanager
    async def use(self, random: Random) -> AsyncIterator[None]:
        del random
        if not self.has_reader:
            self.has_reader = True
            try:
                await self.take()
            finally:
                self.has_reader = False
        yield

    async def take(self) -> None:
        for event in await self.queue.take():
            assert isinstance(event, Tokens)
            assert event.request_id == str(self.taken)
            self.taken += 1

    def stir(self, random: Random) -> None:
        for _ in range(random.randrange(3)):
            self.settle()

    def settle(self) -> None:
        self.queue.put(Tokens(request_id=str(self.put), token_ids=()))
        self.put += 1

    def check(self) -> None:
        assert self.taken <= self.put

    def left(self) -> object:
        return self.has_reader

    async def use_all(self) -> None:
        self.settle()
        await self.take()
        assert self.taken == self.put


class Queries(Resource):
    """Queries to an engine. Replies come once, twice or too late, or the engine ends."""

    refusals = (EngineUnavailable,)

    def __init__(self) -> None:
        self.queries = _NotedQueries()

    @asynccontextmanager
    async def use(self, random: Random) -> AsyncIterator[None]:
        asked = random.randrange(1000)
        reply = await self.queries.ask(Unpin(pin_id=str(asked)), None)
        assert reply.blocks == asked
        yield

    def stir(self, random: Random) -> None:
        sent = self.queries.sent
        if sent and not random.randrange(8):
            self.queries._fail_queries(EngineUnavailable("the engine died"))
        elif sent:
            self.queries.reply(random.choice(sent))  # a random reply, perhaps for the second time

    def settle(self) -> None:
        for one in self.queries.sent:
            self.queries.reply(one)

    def left(self) -> object:
        return self.queries._replies

    async def use_all(self) -> None:
        asking = asyncio.create_task(self.queries.ask(Unpin(pin_id="7"), None))
        await asyncio.sleep(0)
        self.settle()
        assert (await asking).blocks == 7


class _NotedQueries(EngineQueries):
    """Queries that are kept in `sent`. The reply to an `Unpin` has its `pin_id` as `blocks`."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Any] = []

    def _send_query(self, query: QueryMessage) -> None:
        self.sent.append(query)

    def reply(self, query: Any) -> None:
        self._resolve(Unpinned(query_id=query.query_id, blocks=int(query.pin_id)))


class Routes(Resource):
    """A worker and its router process. Answers are late or missing, and connections end.

    The router's running requests must equal the worker's.
    """

    replicas = ("a", "b")

    def __init__(self) -> None:
        self.router = LeastOutstandingRouter()
        self.service = RouterService(self.router, lambda: KnownBlocks({}))
        self.client = RouterClient(Path("nowhere"), wait_s=WAIT_S)
        self.numbers = count()
        self.wire = self.connect()

    def connect(self) -> _Wire:
        near = self.client._channel = RouterChannel(FromRouter, self.client._take)
        return _Wire(near, self.service.meet())

    @asynccontextmanager
    async def use(self, random: Random) -> AsyncIterator[None]:
        del random
        asked = request(f"r{next(self.numbers)}", 1)
        route = await self.client.route(RouteQuestion(asked, self.replicas))
        try:
            yield
        finally:
            for replica, sent in sent_by(asked, route):
                self.client.ended(replica, sent.request_id)

    def stir(self, random: Random) -> None:
        if random.randrange(12):
            self.wire.carry(random.randrange(1, 4))
        else:
            self.wire.cut()
            self.client._lose(self.wire.near, 0.0)
            self.wire = self.connect()

    def settle(self) -> None:
        self.wire.carry(1000)

    def left(self) -> object:
        here = [self.client._waiting, self.client._late, self.client._own._under_way]
        there = [worker._at for worker in self.service._workers]
        return [one for one in (*here, *there, *self.wire.under_way) if one]

    async def use_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            using = group.create_task(self._use_once())
            while not using.done():
                self.settle()
                await asyncio.sleep(0)
        self.settle()

    async def _use_once(self) -> None:
        async with self.use(Random(0)):
            assert not self.client._is_alone


class _Wire:
    """A connection. A message is received at its other end when a test says so."""

    def __init__(self, near: RouterChannel[Any], far: RouterChannel[Any]) -> None:
        self.near, self.far = near, far
        self.under_way: list[tuple[RouterChannel[Any], bytes]] = []
        near.connection_made(_End(self, far))
        far.connection_made(_End(self, near))

    def carry(self, many: int) -> None:
        for _ in range(min(many, len(self.under_way))):
            end, said = self.under_way.pop(0)
            end.data_received(said)

    def cut(self) -> None:
        self.under_way.clear()
        for end in (self.near, self.far):
            end.connection_lost(None)


class _End(asyncio.Transport):
    """The transport of one end of the wire."""

    def __init__(self, wire: _Wire, to: RouterChannel[Any]) -> None:
        super().__init__()
        self._wire, self._to = wire, to

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self._wire.under_way.append((self._to, b"".join(list_of_data)))

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        """Do nothing, since the test cuts the connection."""
