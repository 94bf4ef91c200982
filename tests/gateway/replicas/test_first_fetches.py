"""A new replica fetches the hottest published prefixes before it gets requests to pin them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.link.cache_events import Added, CacheEvents, Cleared
from engine.link.messages import pack_token_ids
from engine.link.query import Query
from engine.link.query_messages import Pin
from engine.link.view_messages import NodeView, Prefixes, PrefixesQuery
from gateway.replicas.engine_set import EngineSet
from gateway.replicas.first_fetches import HottestFirst
from gateway.routing.route import OwnRouting
from gateway.routing.routers.first_token import FirstTokenRouter
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import NamespacePath
from tests.doubles.replicas.fake_replica import FakeReplica
from tests.engine.rigs.rig import NAMESPACE, Clock
from tests.gateway.replicas.rig import KeptNotes, settled

BLOCKS = 40


def prefix(number: int) -> Pin:
    ids = np.full(16 * BLOCKS, number, np.int32)
    keys = block_keys(NamespacePath.single(NAMESPACE), ids, 16)
    return Pin(
        pin_id=f"p{number}", token_ids=pack_token_ids(ids), namespace=NAMESPACE, block_keys=keys
    )


class Hot(FakeReplica):
    """A replica with pinned prefixes, each of which a given number of requests has found."""

    hits: Sequence[int] = ()

    async def answer(self, query: Query[Any]) -> object:
        if not isinstance(query, PrefixesQuery):
            return await super().answer(query)
        nodes = [
            NodeView(
                node=f"n{number}", parent=None, namespace=NAMESPACE, flow="", tokens_before=0,
                tokens=16, device=1, host=0, disk=0, hits=hits, last_used_s=0.0, children=0,
                pins=[f"p{number}"],
            )
            for number, hits in enumerate(self.hits)
        ]  # fmt: skip
        return Prefixes(query_id="", prefixes=nodes, surveyed=1, nodes=1, age_s=0.0)


class Pair:
    """Replica a with three pinned prefixes, and a new replica b."""

    def __init__(self) -> None:
        exchange: dict[str, FakeReplica] = {}
        self.a, self.b = Hot("a"), Hot("b")
        for one in (self.a, self.b):
            one.joins(exchange)
        self.notes = KeptNotes()
        self.router = FirstTokenRouter(Clock())
        self.set = EngineSet({"a": self.a, "b": self.b}, OwnRouting(self.router), self.notes)
        _ = self.set.welcome
        for number in range(3):
            self.a._cached_keys.update(_split(prefix(number).block_keys))
        keys = b"".join(prefix(number).block_keys for number in range(3))
        self.set.heard("a", CacheEvents(number=0, changes=(Cleared(), Added("device", keys))))

    async def pin_all(self) -> None:
        await asyncio.gather(*(self.set.ask(prefix(number), None) for number in range(3)))


def _split(keys: bytes) -> list[bytes]:
    return [keys[at : at + 16] for at in range(0, len(keys), 16)]


async def test_a_new_replica_fetches_the_hottest_first_and_one_after_the_other() -> None:
    pair = Pair()
    pair.a.hits = (3, 9, 5)
    await pair.pin_all()
    assert [one.request_id for one in pair.b.requests] == ["first~p1", "first~p2", "first~p0"]
    for one in pair.b.requests:
        assert one.source is not None
        assert (one.source.address, one.source.only) == ("/exchange/a", True)
        assert one.priority == "batch"
    assert pair.a.requests == [], "it has them"
    assert set(pair.b.pinned) == {"p0", "p1", "p2"}
    assert pair.notes.fetches == ["published"] * 3


async def test_where_nobody_can_be_fetched_from_it_is_pinned_all_the_same() -> None:
    pair = Pair()
    pair.a.exchange = None
    pair.a.come()
    await pair.pin_all()
    assert pair.b.requests == []
    assert set(pair.b.pinned) == {"p0", "p1", "p2"}


async def test_a_fetch_that_fails_reaches_nobody() -> None:
    pair = Pair()
    pair.b.refusal = "queue_full"
    await pair.pin_all()
    assert set(pair.b.pinned) == {"p0", "p1", "p2"}


async def test_of_those_that_wait_the_hottest_is_next_and_one_that_leaves_holds_nobody_up() -> None:
    turns, order = HottestFirst(), list[int]()
    gate = asyncio.Event()

    async def take(hits: int) -> None:
        async with turns.turn(hits):
            order.append(hits)
            await gate.wait()

    first = asyncio.create_task(take(1))
    await settled()
    tasks = [asyncio.create_task(take(hits)) for hits in (5, 9, 7)]
    await settled()
    assert order == [1]
    tasks[1].cancel()
    gate.set()
    await asyncio.gather(first, tasks[0], tasks[2])
    assert order == [1, 7, 5]
    async with asyncio.timeout(60), turns.turn(0):
        order.append(0)
