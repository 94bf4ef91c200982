"""Semaphores with the faults that hand-made ones have, to test a test that looks for such."""

from __future__ import annotations

import asyncio
from collections import deque


class ForgetfulSemaphore:
    """Grants a place to a wait that is over: nobody holds it then, and nobody gives it back."""

    def __init__(self, places: int) -> None:
        self.free = places
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        if self.free:
            self.free -= 1
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting.append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            self._leave(granted)
            raise

    def release(self) -> None:
        self.free += 1
        if self._waiting:
            self._grant(self._waiting.popleft())

    def _grant(self, granted: asyncio.Future[None]) -> None:
        self.free -= 1
        if not granted.done():
            granted.set_result(None)

    def _leave(self, granted: asyncio.Future[None]) -> None:
        """Its wait was cancelled."""
        if granted in self._waiting:
            self._waiting.remove(granted)
        elif not granted.cancelled():
            self.release()  # it was granted in the same turn


class RaisingSemaphore(ForgetfulSemaphore):
    """Has whoever releases a place hear that another's wait is over."""

    def _grant(self, granted: asyncio.Future[None]) -> None:
        granted.set_result(None)
        self.free -= 1


class DoublingSemaphore(ForgetfulSemaphore):
    """Gives a place back for each wait that is cancelled, granted or not."""

    def _leave(self, granted: asyncio.Future[None]) -> None:
        if granted in self._waiting:
            self._waiting.remove(granted)
        self.release()


class SleepySemaphore(ForgetfulSemaphore):
    """Wakes one wait for each place, though it may be over, and others wait beside a free place."""

    def _grant(self, granted: asyncio.Future[None]) -> None:
        if not granted.done():
            self.free -= 1
            granted.set_result(None)
