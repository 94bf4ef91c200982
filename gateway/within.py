"""A timeout that counts only the time in which this process's event loop was responsive.

An event loop that is held up, by a burst of requests or for lack of a processor, sees every answer
late, however early it came: by the clock, a server that answered in a millisecond would have timed
out. So the timeout is divided into turns of the loop's clock, and a turn that is noticed late
counts as one turn only.

Knows: the loop's clock. Does not know: what is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

TURNS = 10


@asynccontextmanager
async def within(timeout_s: float) -> AsyncIterator[None]:
    """TimeoutError when the body takes longer than `timeout_s` of a loop that is not held up."""
    async with asyncio.timeout(None) as scope:
        turns = _Turns(scope, timeout_s / TURNS)
        try:
            yield
        finally:
            turns.stop()


class _Turns:
    """Ends `scope` after TURNS turns of `turn_s` each."""

    def __init__(self, scope: asyncio.Timeout, turn_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._scope = scope
        self._turn_s = turn_s
        self._left = TURNS
        self._next = self._loop.call_later(turn_s, self._turn)

    def stop(self) -> None:
        self._next.cancel()

    def _turn(self) -> None:
        self._left -= 1
        if self._left:
            self._next = self._loop.call_later(self._turn_s, self._turn)
        else:
            self._scope.reschedule(self._loop.time())
