"""The gateway's own semaphores, leases, permits and waiters, in the form that the games use."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from gateway.config import Bounds
from gateway.errors import TooManyRequests, Unavailable
from gateway.http.body_memory import BodyMemory
from gateway.processes.fair_executor import Steps, _Lane
from gateway.replicas.first_fetches import HottestFirst
from gateway.state.redis.link import Breaker, NoAnswer, RedisLink, connect
from tests.seams.given_back.interleaving import WAIT_S, Resource

KIB = 1 << 10
TENANTS = "abc"


class Bodies(Resource):
    """Random use of `BodyMemory`, with room for two large bodies of a tenant and three in all."""

    refusals = (TooManyRequests, Unavailable)
    most_of_one, most = 256 * KIB, 448 * KIB
    sizes = (KIB, 32 * KIB, 96 * KIB, 128 * KIB, 256 * KIB)

    def __init__(self) -> None:
        self.memory = BodyMemory(
            Bounds(
                max_tenant_body_bytes=self.most_of_one,
                max_all_body_bytes=self.most,
                body_wait_s=WAIT_S,
            )
        )

    @asynccontextmanager
    async def use(self, random: Random) -> AsyncIterator[None]:
        with self.memory.lease(random.choice(TENANTS)) as lease:
            for size in random.sample(self.sizes, 2):
                await lease.grow(size)
            if not random.randrange(8):
                lease.release()
            yield

    def check(self) -> None:
        held = self.memory._held.values()
        assert all(0 < size <= self.most_of_one for size in held)
        assert len(self.memory) <= self.most

    def left(self) -> object:
        return [*self.memory._held.items(), *self.memory._waiting.items()]

    async def use_all(self) -> None:
        with self.memory.lease("a") as one, self.memory.lease("b") as other:
            await one.grow(self.most_of_one)
            await other.grow(self.most - self.most // 8 - self.most_of_one)


class OneByOne(Executor):
    """An executor that runs work in the calling thread, when the test says so."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.is_shut = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = Future[Any]()
        self.waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run_one(self) -> None:
        if self.waiting:
            future, work = self.waiting.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BrokenWork as error:
                    future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        del cancel_futures
        self.is_shut = True
        while wait and self.waiting:
            self.run_one()


class BrokenWork(Exception):
    """The error of failing work."""


class Lane(Resource):
    """Threads that tenants use in turn, and that may be closed meanwhile."""

    refusals = (BrokenWork, TooManyRequests, Unavailable)
    threads = 2

    def __init__(self, random: Random) -> None:
        self.pool = OneByOne()
        self.lane = _Lane(self.pool, self.threads)
        self.is_to_close = not random.randrange(4)

    @asynccontextmanager
    async def use(self, random: Random) -> AsyncIterator[None]:
        work = steps(random.randrange(4), breaks=not random.randrange(6))
        await self.lane.run(random.choice(TENANTS), work)
        yield

    def stir(self, random: Random) -> None:
        if self.is_to_close and not random.randrange(30):
            self.lane.close()
        self.pool.run_one()

    def settle(self) -> None:
        self.pool.run_one()

    def check(self) -> None:
        assert 0 <= self.lane._free <= self.threads

    def left(self) -> object:
        return self.lane._waiting or self.pool.waiting or self.threads - self.lane._free

    async def use_all(self) -> None:
        if self.pool.is_shut:
            return
        asked = [asyncio.create_task(self.lane.run("a", steps(0))) for _ in range(self.threads)]
        await asyncio.sleep(0)
        assert len(self.pool.waiting) == self.threads
        for _ in asked:
            self.pool.run_one()
        await asyncio.gather(*asked)


def steps(many: int, *, breaks: bool = False) -> Steps[None]:
    """Do `many` steps of work, and then raise BrokenWork if `breaks`."""
    for _ in range(many):
        yield
    if breaks:
        raise BrokenWork


class Turns(Resource):
    """Random use of `HottestFirst`, which runs one user at a time."""

    def __init__(self) -> None:
        self.turns = HottestFirst()
        self.inside = 0

    @asynccontextmanager
    async def use(self, random: Random) -> AsyncIterator[None]:
        async with self.turns.turn(random.randrange(3)):
            self.inside += 1
            try:
                yield
            finally:
                self.inside -= 1

    def check(self) -> None:
        assert self.inside <= 1

    def left(self) -> object:
        return self.turns._waiting or self.turns._is_taken

    async def use_all(self) -> None:
        async with self.turns.turn(0):
            pass


def link_to_nobody() -> RedisLink:
    """Make a link that uses the loop's clock. A test plays the part of Redis."""
    loop = asyncio.get_running_loop()
    return RedisLink(connect("redis://127.0.0.1:1"), Breaker(loop.time), timeout_s=WAIT_S)


class Redis(Resource):
    """Random use of a Redis link. Its concurrent calls are bounded in number, and all time out."""

    refusals = (NoAnswer, Unavailable)
    places = 16

    def __init__(self) -> None:
        self.link = link_to_nobody()
        self.inside = 0

    @asynccontextmanager
    async def use(self, random: Random) -> AsyncIterator[None]:
        await self.link.run(lambda: self.answer(random.choice((0, 1.0, WAIT_S, 2 * WAIT_S))))
        yield

    async def answer(self, after_s: float) -> None:
        self.inside += 1
        try:
            await asyncio.sleep(after_s)
        finally:
            self.inside -= 1

    def check(self) -> None:
        assert self.inside <= self.places

    def left(self) -> object:
        return self.inside or self.places - self.link._turns._value

    async def use_all(self) -> None:
        await asyncio.sleep(2 * WAIT_S)
        await self.link.run(lambda: self.answer(0))  # Redis answers again
        async with asyncio.TaskGroup() as group:
            for _ in range(self.places):
                group.create_task(self.link.run(lambda: self.answer(1.0)))
            await asyncio.sleep(0.5)
            assert self.inside == self.places
