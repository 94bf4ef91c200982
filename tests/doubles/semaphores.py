"""A semaphore that is made by hand, and the faults that such have, for tests of a test."""

from __future__ import annotations

import asyncio
from collections import deque


class PlainSemaphore:
    """Has no fault."""

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
            if self._leaves(granted):
                raise

    def release(self) -> None:
        self.free += 1
        self._grant()

    def _grant(self) -> None:
        """Let those in for whom there is a place; a wait that is over is passed over."""
        while self.free and self._waiting:
            granted = self._waiting.popleft()
            if not granted.done():
                self.free -= 1
                granted.set_result(None)

    def _leaves(self, granted: asyncio.Future[None]) -> bool:
        """Whether a task that is cancelled goes; it gives back what it was granted in that turn."""
        if granted in self._waiting:
            self._waiting.remove(granted)
        elif not granted.cancelled():
            self.release()
        return True


class ForgetfulSemaphore(PlainSemaphore):
    """Grants a place to a wait that is over: nobody holds it then, and nobody gives it back."""

    def _grant(self) -> None:
        if self._waiting:
            self.free -= 1
            granted = self._waiting.popleft()
            if not granted.done():
                granted.set_result(None)


class RaisingSemaphore(PlainSemaphore):
    """Has whoever releases a place hear that another's wait is over."""

    def _grant(self) -> None:
        if self._waiting:
            self._waiting.popleft().set_result(None)
            self.free -= 1


class SleepySemaphore(PlainSemaphore):
    """Wakes one wait for each place, though it may be over, and others wait beside a free place."""

    def _grant(self) -> None:
        if self._waiting:
            granted = self._waiting.popleft()
            if not granted.done():
                self.free -= 1
                granted.set_result(None)


class DoublingSemaphore(PlainSemaphore):
    """Gives a place back for each wait that is cancelled, granted or not."""

    def _leaves(self, granted: asyncio.Future[None]) -> bool:
        if granted in self._waiting:
            self._waiting.remove(granted)
        self.release()
        return True


class DeafSemaphore(PlainSemaphore):
    """Goes on where a place is granted in the turn in which it is cancelled, as if it were not."""

    def _leaves(self, granted: asyncio.Future[None]) -> bool:
        return granted.cancelled() and super()._leaves(granted)
