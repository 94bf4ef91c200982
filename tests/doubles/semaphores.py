"""A hand-made semaphore, and common faults of such semaphores, to test a test."""

from __future__ import annotations

import asyncio
from collections import deque


class PlainSemaphore:
    """Semaphore without a fault."""

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
        """Give free places to waiting tasks in order; skip waits that are over."""
        while self.free and self._waiting:
            granted = self._waiting.popleft()
            if not granted.done():
                self.free -= 1
                granted.set_result(None)

    def _leaves(self, granted: asyncio.Future[None]) -> bool:
        """Return whether a cancelled task leaves; give back a place granted in the same turn."""
        if granted in self._waiting:
            self._waiting.remove(granted)
        elif not granted.cancelled():
            self.release()
        return True


class ForgetfulSemaphore(PlainSemaphore):
    """Grants a place to a wait that is over, so that no task ever gives the place back."""

    def _grant(self) -> None:
        if self._waiting:
            self.free -= 1
            granted = self._waiting.popleft()
            if not granted.done():
                granted.set_result(None)


class RaisingSemaphore(PlainSemaphore):
    """Raises an error in the task that releases a place, if the next wait is over."""

    def _grant(self) -> None:
        if self._waiting:
            self._waiting.popleft().set_result(None)
            self.free -= 1


class SleepySemaphore(PlainSemaphore):
    """Wakes one wait for each place; if this wait is over, others wait beside a free place."""

    def _grant(self) -> None:
        if self._waiting:
            granted = self._waiting.popleft()
            if not granted.done():
                self.free -= 1
                granted.set_result(None)


class DoublingSemaphore(PlainSemaphore):
    """Gives a place back for each cancelled wait, granted or not."""

    def _leaves(self, granted: asyncio.Future[None]) -> bool:
        if granted in self._waiting:
            self._waiting.remove(granted)
        self.release()
        return True


class DeafSemaphore(PlainSemaphore):
    """Ignores a cancellation in the turn that grants the place."""

    def _leaves(self, granted: asyncio.Future[None]) -> bool:
        return granted.cancelled() and super()._leaves(granted)
