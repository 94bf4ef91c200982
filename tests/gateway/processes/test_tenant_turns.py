"""One piece of a tenant's work runs at a time, and no tenant waits for another."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import TooManyRequests
from gateway.processes.tenant_turns import TenantTurns, seen_out


class Visitor:
    """A task that takes its tenant's turn, and keeps it until a test ends it."""

    def __init__(self, turns: TenantTurns, tenant_id: str | None) -> None:
        self.is_in, self.may_go = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._visit(turns, tenant_id))

    async def _visit(self, turns: TenantTurns, tenant_id: str | None) -> None:
        async with turns.of(tenant_id):
            self.is_in.set()
            await self.may_go.wait()


async def settled(*visitors: Visitor) -> list[bool]:
    for _ in range(5):
        await asyncio.sleep(0)
    return [visitor.is_in.is_set() for visitor in visitors]


async def test_a_tenant_is_in_once_and_others_at_the_same_time() -> None:
    turns = TenantTurns()
    visitors = [Visitor(turns, who) for who in ("a", "a", "b", None)]
    assert await settled(*visitors) == [True, False, True, True]
    visitors[0].may_go.set()
    assert await settled(*visitors) == [True, True, True, True]
    for visitor in visitors:
        visitor.may_go.set()
        await visitor.task


async def test_one_that_leaves_is_passed_over() -> None:
    turns = TenantTurns()
    first, leaver, last = (Visitor(turns, "a") for _ in range(3))
    await settled()
    leaver.task.cancel()
    first.may_go.set()
    assert await settled(first, leaver, last) == [True, False, True]
    last.may_go.set()
    await last.task


async def test_more_than_may_wait_are_refused_until_some_have_gone() -> None:
    turns = TenantTurns(most_waiting=1)
    inside, waits = Visitor(turns, "a"), Visitor(turns, "a")
    await settled()
    with pytest.raises(TooManyRequests):
        async with turns.of("a"):
            pass
    async with turns.of("b"):
        pass
    waits.task.cancel()
    await settled()
    another = Visitor(turns, "a")
    inside.may_go.set()
    assert await settled(another) == [True]
    another.may_go.set()
    await another.task


async def test_work_that_cannot_be_stopped_keeps_its_turn() -> None:
    turns, end = TenantTurns(), asyncio.Event()

    async def work() -> None:
        async with turns.of("a"):
            await seen_out(end.wait())

    working = asyncio.create_task(work())
    await settled()
    working.cancel()
    next_one = Visitor(turns, "a")
    assert await settled(next_one) == [False]
    end.set()
    assert await settled(next_one) == [True]
    assert working.cancelled()
    next_one.may_go.set()
    await next_one.task


async def test_what_is_seen_out_gives_its_result_and_its_error() -> None:
    async def broken() -> int:
        raise ValueError

    assert await seen_out(asyncio.sleep(0, 3)) == 3
    with pytest.raises(ValueError):
        await seen_out(broken())
