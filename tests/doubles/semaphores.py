"""A correct semaphore, and semaphores with common faults that a test must find."""

from __future__ import annotations

import asyncio
from collections import deque


class PlainSemaphore:
    """A semaphore without a fault."""

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
        """Give free places to waiting tasks in order, except waits that have ended."""
        while self.free and self._waiting:
            granted = self._waiting.popleft()
            if not granted.done():
                self.free -= 1
                granted.set_result(None)

    def _leaves(self, granted: asyncio.Future[None]) -> bool:
        """Return whether a cancelled task leaves. Give back a place that it was just granted."""
        if granted in self._waiting:
            self._waiting.remove(granted)
        elif not granted.cancelled():
            self.release()
        return True


class ForgetfulSemaphore(PlainSemaphore):
    """A faulty semaphore: an ended wait may be granted a place, which is never given back."""

    def _grant(self) -> None:
        if self._waiting:
            self.free -= 1
            granted = self._waiting.popleft()
            if not granted.done():
                granted.set_result(None)


class RaisingSemaphore(PlainSemaphore):
    """A faulty semaphore: a release raises an error if the next wait has ended."""

    def _grant(self) -> None:
        if self._waiting:
            self._waiting.popleft().set_result(None)
            self.free -= 1


class SleepySemaphore(PlainSemaphore):
    """A faulty semaphore: for each place it wakes one wait, even if this wait has ended."""

    def _grant(self) -> None:
        if self._waiting:
            granted = self._waiting.popleft()
            if not granted.done():
                self.free -= 1
                granted.set_result(None)


class DoublingSemaphore(PlainSemaphore):
    """A faulty semaphore: each cancelled wait gives back a place, even if none was granted."""

    def _leaves(self, granted: asyncio.Future[None]) -> bool:
        if granted in self._waiting:
            self._waiting.remove(granted)
        self.release()
        return True


class DeafSemaphore(PlainSemaphore):
    """A faulty semaphore: it ignores a cancellation in the iteration that grants the place."""

    def _leaves(self, granted: asyncio.Future[None]) -> bool:
        return granted.cancelled() and super()._leaves(granted)
