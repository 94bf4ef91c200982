"""Answers to several workers equal the answers of a single router that gets the same messages."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from engine.link.cache_events import Added, Cleared
from gateway.router_process.client import RouterClient
from gateway.routing.prompt import RoutingRequest
from gateway.routing.route import OwnRouting, Route, RouteQuestion, Routing, sent_by
from gateway.routing.routers.first_token import FirstTokenRouter
from tests.engine.rigs.rig import Clock
from tests.gateway.router_process.rig import LIMITS, READY, open_office, question, settled
from tests.gateway.routing.requests import chained, events, request, reused, timing

SOURCES = {name: f"/exchange/{name}" for name in "abcd"}


class Calls:
    """Random calls of several workers, repeated on a single router."""

    def __init__(self, seed: int, workers: list[RouterClient], routed: FirstTokenRouter) -> None:
        self.random = Random(seed)
        self.workers = workers
        self.routed = routed
        self.clock = Clock()
        self.router = FirstTokenRouter(self.clock)
        self.one = OwnRouting(self.router, LIMITS)
        self.under_way: list[tuple[RouterClient, str, str]] = []
        self.remote = 0
        self.fetched = 0

    async def ask(self, number: int) -> tuple[Route, Route]:
        """Send one request to a worker and to the single router."""
        tenant, length = self.random.randrange(6), self.random.randrange(1, 30)
        asked = request(f"r{number}", *((tenant, at) for at in range(length)))
        ready = self.random.sample(("a", "b", "c"), self.random.randint(1, 3))
        computing = ("d",) if self.random.random() < 0.5 else ()
        sources = SOURCES if self.random.random() < 0.7 else {}
        put = RouteQuestion(asked, ready, sources, computing)
        worker = self.random.choice(self.workers)
        answer, expected = await worker.route(put), await self.one.route(put)
        self.note(worker, asked, answer)
        return answer, expected

    def note(self, worker: RouterClient, asked: RoutingRequest, route: Route) -> None:
        self.under_way += [(worker, at, one.request_id) for at, one in sent_by(asked, route)]
        self.remote += route.prompt is not None
        self.fetched += route.answer.source is not None

    async def begin_or_end(self) -> None:
        """Report a running request's first token, or end the request."""
        if not self.under_way:
            return
        worker, replica, name = self.under_way[self.random.randrange(len(self.under_way))]
        routings: tuple[Routing, ...] = (worker, self.one)
        told = reused(device=self.random.randrange(99)), timing(prefill=self.random.random() / 10)
        is_over = self.random.random() < 0.5
        for one in routings:
            if is_over:
                one.ended(replica, name)
            else:
                one.began(replica, name, *told)
        if is_over:
            self.under_way.remove((worker, replica, name))
        await settled(worker)
        # repeats the call that `settled` makes
        await self.one.source(RoutingRequest("settled", 1), "a", {})

    def hear(self) -> None:
        """Report that a replica has blocks, or is gone."""
        replica, tenant = self.random.choice("abcd"), self.random.randrange(6)
        keys = chained(*((tenant, at) for at in range(self.random.randrange(1, 30))))
        is_gone = self.random.random() < 0.1
        for one in (self.routed, self.router):
            if is_gone:
                one.gone(replica)
            else:
                one.heard(
                    replica, events(*([Cleared()] if keys[0] % 2 else []), Added("device", keys))
                )


@pytest.mark.parametrize("count", [1, 3])
async def test_whichever_worker_asks_the_choice_is_that_of_one_router(
    tmp_path: Path, count: int
) -> None:
    remote = fetched = 0
    for seed in range(4):
        directory = tmp_path / str(seed)
        directory.mkdir()
        async with open_office(directory, count) as (office, workers):
            calls = Calls(seed, list(workers), office.router)
            for number in range(120):
                calls.clock.now = office.clock.now = office.clock.now + calls.random.random() / 50
                if calls.random.random() < 0.5:
                    calls.hear()
                answer, expected = await calls.ask(number)
                assert answer == expected
                await calls.begin_or_end()
            remote, fetched = remote + calls.remote, fetched + calls.fetched
    assert remote > 20, "the control: prompts were computed elsewhere"
    assert fetched > remote, "and blocks were fetched"


async def test_what_several_workers_ask_at_once_is_computed_once(tmp_path: Path) -> None:
    """Compute a prefix once that several workers ask for at once.

    Positive control: separate routers put each tenant's prefix on both replicas.
    """

    async def replicas_of(routings: list[Routing]) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {tenant: set() for tenant in range(8)}

        async def ask(number: int) -> None:
            tenant = number % 8
            begin = ((tenant, at) for at in range(40))
            asked = request(f"r{number}", *begin, ("own", number))
            route = await routings[Random(number).randrange(4)].route(question(asked))
            found[tenant].add(route.answer.replica)

        await asyncio.gather(*map(ask, range(40)))
        return found

    async with open_office(tmp_path, 4) as (office, workers):
        together = await replicas_of(list(workers))
        assert sum(office.running().values()) == 40
        assert len(set(office.running().values())) == 1, "half of them each"
    apart = await replicas_of([OwnRouting(FirstTokenRouter(Clock())) for _ in range(4)])
    assert {len(replicas) for replicas in together.values()} == {1}
    assert sum(len(replicas) for replicas in apart.values()) > 12
    assert set().union(*together.values()) == set(READY)
