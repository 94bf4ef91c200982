"""Memory for request bodies, per tenant and in all. Requests without room wait in turn, for a
limited time.
"""

from __future__ import annotations

import asyncio

import pytest

from gateway.config import Bounds
from gateway.errors import TooManyRequests, Unavailable
from gateway.http.body_memory import SMALL, BodyMemory

MIB = 1 << 20


def memory(*, one: int = 4 * MIB, every: int = 16 * MIB, wait_s: float = 30.0) -> BodyMemory:
    bounds = Bounds(max_tenant_body_bytes=one, max_all_body_bytes=every, body_wait_s=wait_s)
    return BodyMemory(bounds)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_is_taken_is_given_back_once_however_it_ends() -> None:
    bodies = memory()

    async def request() -> None:
        with bodies.lease("a") as lease:
            await lease.grow(MIB)
            await lease.grow(MIB // 2)  # smaller than the lease already is
            assert len(bodies) == MIB
            lease.release()
            lease.release()
            await lease.grow(2 * MIB)
            raise RuntimeError("it broke")

    with pytest.raises(RuntimeError, match="it broke"):
        await request()
    assert len(bodies) == 0


async def test_a_tenant_waits_for_its_own_and_no_other_does() -> None:
    bodies = memory()
    with bodies.lease("a") as held, bodies.lease("a") as late, bodies.lease("b") as other:
        await held.grow(4 * MIB)
        waiting = asyncio.create_task(late.grow(MIB))
        await turns()
        assert not waiting.done()
        await other.grow(4 * MIB)
        held.release()
        await waiting
        assert len(bodies) == 5 * MIB


async def test_who_waits_too_long_is_told_whose_bound_it_is() -> None:
    bodies = memory(every=8 * MIB, wait_s=0.01)
    with bodies.lease("a") as a, bodies.lease("b") as b, bodies.lease("a") as more:
        await a.grow(4 * MIB)
        with pytest.raises(TooManyRequests) as own:
            await more.grow(MIB)
        await b.grow(3 * MIB)
        with bodies.lease("c") as c, pytest.raises(Unavailable) as all_of_them:
            await c.grow(MIB)
    for refusal in (own, all_of_them):
        assert refusal.value.retry_after_s is not None
    assert len(bodies) == 0
    with bodies.lease("c") as c:  # positive control
        await c.grow(4 * MIB)


async def test_large_bodies_leave_room_to_small_ones() -> None:
    bodies = memory(every=8 * MIB)
    with bodies.lease("a") as a, bodies.lease("b") as b, bodies.lease("c") as c:
        await a.grow(4 * MIB)
        await b.grow(3 * MIB)
        large = asyncio.create_task(c.grow(SMALL + 1))
        await turns()
        assert not large.done()
        with bodies.lease("d") as small:
            await small.grow(SMALL)
        b.release()
        await large


async def test_tenants_take_turns_and_one_tenants_requests_keep_their_order() -> None:
    bodies = memory(one=8 * MIB, every=9 * MIB)
    served: list[str] = []

    async def request(name: str) -> None:
        with bodies.lease(name[0]) as lease:
            await lease.grow(7 * MIB)
            served.append(name)
            await turns()

    names = ["a1", "a2", "a3", "b1", "b2"]
    await asyncio.gather(*map(request, names))
    assert served == ["a1", "a2", "b1", "a3", "b2"]


async def test_who_leaves_while_waiting_holds_nobody_up() -> None:
    bodies = memory()
    with bodies.lease("a") as a, bodies.lease("a") as large, bodies.lease("a") as small:
        await a.grow(3 * MIB)
        gone = asyncio.create_task(large.grow(2 * MIB))
        next_one = asyncio.create_task(small.grow(MIB))
        await turns()
        assert not next_one.done()  # the next waiting request keeps its position in the queue
        gone.cancel()
        await next_one
        assert len(bodies) == 4 * MIB
    assert len(bodies) == 0


async def test_a_request_that_leaves_as_it_is_let_in_gives_back() -> None:
    bodies = memory()
    with bodies.lease("a") as a, bodies.lease("a") as b:
        await a.grow(4 * MIB)
        waiting = asyncio.create_task(b.grow(MIB))
        await turns()
        a.release()
        waiting.cancel()  # the waiting task has been granted the room, but does not know it yet
        await asyncio.gather(waiting, return_exceptions=True)
    assert len(bodies) == 0


async def test_waits_that_end_together_hold_nothing_and_break_nobody() -> None:
    bodies = memory(wait_s=0.01)

    async def request() -> None:
        with bodies.lease("a") as lease:
            await lease.grow(MIB)
            await turns()
            # each of the four requests holds 1 MiB, and there is no fifth MiB
            await lease.grow(2 * MIB)

    ended = await asyncio.gather(*(request() for _ in range(4)), return_exceptions=True)
    assert {type(error) for error in ended} == {TooManyRequests, type(None)}
    assert len(bodies) == 0
    with bodies.lease("a") as all_of_it:  # positive control
        await all_of_it.grow(4 * MIB)
