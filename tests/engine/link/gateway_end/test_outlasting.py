from __future__ import annotations

import asyncio
import time

import pytest

from engine.link.gateway_end.outlasting import outlasting


async def test_it_waits_until_the_work_is_done() -> None:
    done = asyncio.Event()
    waiting = asyncio.ensure_future(outlasting(done.wait(), 60))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    done.set()
    await waiting


async def test_whoever_is_cancelled_meanwhile_has_waited_all_the_same() -> None:
    done = asyncio.Event()
    waiting = asyncio.ensure_future(outlasting(done.wait(), 60))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0.01)
    assert not waiting.done(), "the control: it was cancelled before"
    done.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.parametrize("cancelled", [False, True])
async def test_it_waits_no_longer_than_it_is_told(cancelled: bool) -> None:
    ends: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cancelled")

    waiting = asyncio.ensure_future(outlasting(endless(), 0.05))
    await asyncio.sleep(0)
    if cancelled:
        waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled() is cancelled
    await asyncio.sleep(0)
    assert ends == ["cancelled"]


async def test_time_in_which_the_event_loop_is_held_up_does_not_count() -> None:
    """Discount the time in which other processes delay this one, since the awaited work cannot run
    meanwhile.
    """
    ends: list[str] = []

    async def a_few_turns() -> None:
        for _ in range(10):
            await asyncio.sleep(0)
            time.sleep(0.05)  # noqa: ASYNC251 (the event loop is what has to stand still)
        ends.append("done")

    await outlasting(a_few_turns(), 0.1)
    assert ends == ["done"]
