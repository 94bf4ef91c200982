"""A timeout that counts only the time in which this process's event loop is responsive.

A burst of requests, or the lack of a processor, may hold up the event loop. The loop then sees
every answer late, even if the server answered in a millisecond. By the clock, the call would time
out. The timeout is therefore divided into short timers, each started by the one before. A timer
that fires late still counts only its own length.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

TURNS = 10


@asynccontextmanager
async def loop_timeout(timeout_s: float) -> AsyncIterator[None]:
    """Raise TimeoutError if the body takes over `timeout_s` of a responsive event loop's time."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle
    async with asyncio.timeout(None) as scope:

        def turn(left: int) -> None:
            nonlocal timer
            if left:
                timer = loop.call_later(timeout_s / TURNS, turn, left - 1)
            else:
                scope.reschedule(loop.time())

        timer = loop.call_later(timeout_s / TURNS, turn, TURNS - 1)
        try:
            yield
        finally:
            timer.cancel()
