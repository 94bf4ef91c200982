"""Work yields after every step, and tenants take turns on the event loop and on threads."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from gateway.errors import TooManyRequests, Unavailable
from gateway.processes import fair_executor
from gateway.processes.fair_executor import (
    INLINE_SIZE,
    LARGE,
    FairExecutor,
    LoopTime,
    Steps,
    at_once,
)
from tests.gateway.support.manual_clock import ManualClock

MEDIUM = INLINE_SIZE + 1


@pytest.fixture
def pool() -> Iterator[FairExecutor]:
    with closing(FairExecutor(1)) as pool:
        yield pool


class Work:
    """Work whose steps record their name; the first step waits until a test releases it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.may_go = threading.Event()
        self.has_begun = threading.Event()

    def steps(self, name: str, many: int) -> Steps[str]:
        for _ in range(many):
            self.has_begun.set()
            assert self.may_go.wait(10)
            self.done.append(name)
            yield
        return name


async def begun(work: Work) -> None:
    while not work.has_begun.is_set():  # noqa: ASYNC110 (a thread says so)
        await asyncio.sleep(0)


async def test_a_neighbour_waits_for_one_step(pool: FairExecutor) -> None:
    work = Work()
    long = asyncio.create_task(pool.run("a", work.steps("long", 6), MEDIUM))
    await begun(work)
    short = asyncio.create_task(pool.run("b", work.steps("short", 2), MEDIUM))
    await asyncio.sleep(0)
    work.may_go.set()
    assert list(await asyncio.gather(long, short)) == ["long", "short"]
    assert work.done[:4] == ["long", "short", "long", "short"]


async def test_without_neighbours_work_goes_on_while_the_loop_is_busy(pool: FairExecutor) -> None:
    last = threading.Event()

    def steps() -> Steps[str]:
        yield
        yield
        last.set()
        return "done"

    alone = asyncio.create_task(pool.run("a", steps(), MEDIUM))
    await asyncio.sleep(0)
    assert last.wait(10)  # this wait blocks the event loop
    assert await alone == "done"


async def test_its_end_waits_for_a_step_and_not_for_all_of_the_work() -> None:
    pool, has_begun, is_over = FairExecutor(1), threading.Event(), threading.Event()

    def endless() -> Steps[None]:
        while not is_over.is_set():
            has_begun.set()
            yield

    task = asyncio.create_task(pool.run("a", endless(), MEDIUM))
    while not has_begun.is_set():  # noqa: ASYNC110 (a thread says so)
        await asyncio.sleep(0)
    try:
        await asyncio.wait_for(asyncio.to_thread(pool.close), 10)
        with pytest.raises(Unavailable):  # positive control: the other tenant could have sent more
            await task
    finally:
        is_over.set()


async def test_who_waits_when_it_is_closed_is_told_so_and_so_is_who_comes_later() -> None:
    pool, work = FairExecutor(1), Work()
    begun_work = asyncio.create_task(pool.run("a", work.steps("begun", 1), MEDIUM))
    await begun(work)
    waiting = asyncio.create_task(pool.run("b", work.steps("waiting", 1), MEDIUM))
    await asyncio.sleep(0)
    work.may_go.set()
    pool.close()
    ended = await asyncio.gather(
        begun_work, waiting, pool.run("a", work.steps("late", 1), MEDIUM), return_exceptions=True
    )
    assert [type(one) for one in ended[1:]] == [Unavailable, Unavailable]
    assert work.done == ["begun"]


async def test_one_tenants_work_is_done_in_order(pool: FairExecutor) -> None:
    work = Work()
    first = asyncio.create_task(pool.run("a", work.steps("first", 4), MEDIUM))
    await begun(work)
    second = asyncio.create_task(pool.run("a", work.steps("second", 1), MEDIUM))
    await asyncio.sleep(0)
    work.may_go.set()
    await asyncio.gather(first, second)
    assert work.done == ["first"] * 4 + ["second"]


async def test_a_tenant_with_more_work_has_no_more_turns(pool: FairExecutor) -> None:
    work = Work()
    first = asyncio.create_task(pool.run("a", work.steps("first", 4), MEDIUM))
    await begun(work)
    second = asyncio.create_task(pool.run("a", work.steps("second", 4), MEDIUM))
    other = asyncio.create_task(pool.run("b", work.steps("other", 1), MEDIUM))
    await asyncio.sleep(0)
    work.may_go.set()
    await asyncio.gather(first, second, other)
    assert "other" in work.done[:3]


async def test_large_work_has_a_thread_of_its_own_that_steps_back(pool: FairExecutor) -> None:
    work = Work()
    large = asyncio.create_task(pool.run("a", work.steps("large", 1), LARGE + 1))
    await begun(work)

    def niceness() -> Steps[int]:
        yield from ()
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    mine = os.getpriority(os.PRIO_PROCESS, 0)
    assert await pool.run("b", niceness(), LARGE) == mine  # while the large work runs
    work.may_go.set()
    await large
    nicer = await pool.run("b", niceness(), LARGE + 1)
    assert nicer > mine or mine == 19 or sys.platform != "linux"


async def test_an_error_is_the_callers_and_the_thread_goes_on(pool: FairExecutor) -> None:
    def broken() -> Steps[None]:
        yield
        raise ValueError("it broke")

    with pytest.raises(ValueError, match="it broke"):
        await pool.run("a", broken(), MEDIUM)
    work = Work()
    work.may_go.set()
    assert await pool.run("a", work.steps("next", 3), MEDIUM) == "next"


async def test_work_of_a_request_that_left_is_not_gone_on_with(pool: FairExecutor) -> None:
    work = Work()
    gone = asyncio.create_task(pool.run("a", work.steps("gone", 50), MEDIUM))
    await begun(work)
    waits = asyncio.create_task(pool.run("a", work.steps("waits", 1), MEDIUM))
    stays = asyncio.create_task(pool.run("a", work.steps("stays", 1), MEDIUM))
    await asyncio.sleep(0)
    gone.cancel()
    waits.cancel()
    await asyncio.gather(gone, waits, return_exceptions=True)
    work.may_go.set()
    assert await stays == "stays"
    assert work.done == ["gone", "stays"]  # the running step is finished


async def test_so_much_of_a_tenant_may_wait(
    pool: FairExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_executor, "_MAX_WAITING", 2)
    work = Work()
    running = asyncio.create_task(pool.run("a", work.steps("running", 3), MEDIUM))
    await begun(work)
    waiting = [asyncio.create_task(pool.run("a", work.steps("w", 1), MEDIUM)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests):
        await pool.run("a", work.steps("too many", 1), MEDIUM)
    other = asyncio.create_task(pool.run("b", work.steps("other", 1), MEDIUM))  # positive control
    await asyncio.sleep(0)
    work.may_go.set()
    assert await asyncio.gather(running, *waiting, other) == ["running", "w", "w", "other"]


def test_all_steps_at_once() -> None:
    work = Work()
    work.may_go.set()
    assert at_once(work.steps("x", 3)) == "x"
    assert work.done == ["x"] * 3


async def test_what_was_computed_is_not_refused_where_much_waits() -> None:
    pool, began, may_end = FairExecutor(1), threading.Event(), threading.Event()

    def held() -> Steps[int]:
        began.set()
        may_end.wait(20)
        yield from ()
        return 0

    def quick() -> Steps[int]:
        yield from ()
        return 1

    first = asyncio.ensure_future(pool.run("a", held(), MEDIUM))
    waiting = [asyncio.ensure_future(pool.run("a", quick(), MEDIUM)) for _ in range(1024)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests):
        await pool.run("a", quick(), MEDIUM)
    late = asyncio.ensure_future(pool.run("a", quick(), MEDIUM, may_refuse=False))
    await asyncio.sleep(0)
    may_end.set()
    assert (await first, sum(await asyncio.gather(*waiting)), await late) == (0, 1024, 1)
    pool.close()


class Timed:
    """Small work whose steps each take some time on a test's clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.pool = FairExecutor(1, LoopTime(self.clock))

    async def on_the_loop(self, tenant_id: str, *seconds: float) -> list[bool]:
        """Return, for each step, whether it was done on the event loop."""

        def steps() -> Steps[list[bool]]:
            found = []
            for one in seconds:
                yield
                self.clock.now += one
                found.append(threading.current_thread() is threading.main_thread())
            return found

        return await self.pool.run(tenant_id, steps(), INLINE_SIZE)


@pytest.mark.parametrize("size", [INLINE_SIZE, INLINE_SIZE + 1, LARGE + 1])
async def test_a_step_that_says_that_it_is_large_is_not_done_on_the_loop(
    pool: FairExecutor, size: int
) -> None:
    def steps() -> Steps[list[str]]:
        found = [threading.current_thread().name]
        yield size
        found.append(threading.current_thread().name)
        yield
        return found

    small, large = await pool.run("a", steps(), 1)
    assert small == threading.main_thread().name
    lane = "small" if size <= LARGE else "large"
    assert large.startswith(small if size == INLINE_SIZE else lane)


@pytest.fixture
def timed() -> Iterator[Timed]:
    timed = Timed()
    with closing(timed.pool):
        yield timed


async def test_small_work_is_done_on_the_loop_for_a_turn_of_its_tenant(timed: Timed) -> None:
    done = [await timed.on_the_loop("a", 0.001) for _ in range(80)]
    assert done[:10] == [[True]] * 10
    assert 10 + 80 // 4 - 1 <= done.count([True]) <= 10 + 80 // 4 + 1, "a turn, and a quarter"
    assert await timed.on_the_loop("b", 0.001) == [True]  # positive control
    timed.clock.now += 0.1
    assert await timed.on_the_loop("a", 0.001) == [True]


async def test_what_is_left_of_small_work_after_a_turn_is_done_in_a_thread(timed: Timed) -> None:
    assert await timed.on_the_loop("a", *[0.004] * 5) == [True] * 3 + [False] * 2


async def test_work_that_took_long_keeps_its_tenant_off_the_loop_for_longer(timed: Timed) -> None:
    await timed.on_the_loop("a", 0.004)
    await timed.on_the_loop("b", 1.0)
    timed.clock.now += 1.0
    assert await timed.on_the_loop("a", 0.001) == [True]
    assert await timed.on_the_loop("b", 0.001) == [False]
    timed.clock.now += 3.0
    assert await timed.on_the_loop("b", 0.001) == [True]


async def test_work_that_fails_on_the_loop_takes_time_too(timed: Timed) -> None:
    def broken() -> Steps[None]:
        yield
        timed.clock.now += 1.0
        raise ValueError("it broke")

    with pytest.raises(ValueError, match="it broke"):
        await timed.pool.run("a", broken(), 0)
    assert await timed.on_the_loop("a", 0.001) == [False]


async def test_tenants_that_were_here_long_ago_are_forgotten(timed: Timed) -> None:
    for number in range(100):
        await timed.on_the_loop(f"tenant-{number}", 0.001)
        timed.clock.now += 1.0
    assert len(timed.pool._loop_time._whole_at) <= 2
