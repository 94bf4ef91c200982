"""A busy event loop does not shorten a time-out."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.processes.loop_timeout import TURNS, loop_timeout

TIMEOUT_S = 0.05


def answered_soon() -> asyncio.Future[str]:
    """Return a future that is done two event-loop iterations later, like an answer from a
    socket.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str] = loop.create_future()
    loop.call_soon(loop.call_soon, answer.set_result, "here")
    return answer


def hold_up(seconds: float) -> None:
    """Make the event loop's next iteration last this many seconds."""
    asyncio.get_running_loop().call_soon(time.sleep, seconds)


async def test_what_never_comes_is_not_waited_for() -> None:
    never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError):
        async with loop_timeout(TIMEOUT_S):
            await never


async def test_an_answer_is_no_later_because_the_loop_was_held_up() -> None:
    hold_up(2 * TIMEOUT_S)
    async with loop_timeout(TIMEOUT_S):
        assert await answered_soon() == "here"


async def test_the_clock_alone_would_call_it_late() -> None:
    hold_up(2 * TIMEOUT_S)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(TIMEOUT_S):
            await answered_soon()


async def test_a_loop_that_is_always_busy_gives_up_at_last() -> None:
    turns = 0

    async def busy() -> None:
        nonlocal turns
        while True:
            turns += 1
            time.sleep(TIMEOUT_S / 2)  # noqa: ASYNC251 (that is what holds a loop up)
            await asyncio.sleep(0)

    never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    working = asyncio.create_task(busy())
    with pytest.raises(TimeoutError):
        async with loop_timeout(TIMEOUT_S):
            await never
    working.cancel()
    # a timer set in one iteration is due two iterations later
    assert TURNS <= turns <= 2 * TURNS + 4


async def test_errors_and_cancellation_pass_and_no_turn_is_left() -> None:
    with pytest.raises(ValueError, match="mine"):
        async with loop_timeout(TIMEOUT_S):
            raise ValueError("mine")

    async def waits() -> None:
        async with loop_timeout(60.0):
            await asyncio.get_running_loop().create_future()

    waiting = asyncio.create_task(waits())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
