"""A timeout that counts only the time in which this process's event loop is responsive.

An event loop that is held up, by a burst of requests or for lack of a processor, sees every answer
late, even if the server answered in a millisecond; by the clock, the call would time out. So the
timeout is divided into turns of the loop's clock, and a turn that ends late counts as one turn
only.
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
