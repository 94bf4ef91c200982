"""A timer that schedules one later call."""

import asyncio
from collections.abc import Callable


class Timer:
    """A timer that calls `call` once when its time has come."""

    __slots__ = ("_call", "_due", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
        self._loop = loop
        self._call = call
        self._due: asyncio.Handle | None = None

    @property
    def is_due(self) -> bool:
        """True if a call is scheduled."""
        return self._due is not None

    def soon(self) -> None:
        """Schedule the call after all callbacks that are ready now, unless a call is scheduled."""
        if self._due is None:
            self._due = self._loop.call_soon(self._come)

    def after(self, seconds: float) -> None:
        """Schedule the call in the given seconds, unless a call is scheduled."""
        if self._due is None:
            self._due = self._loop.call_later(seconds, self._come)

    def restart(self, seconds: float | None) -> None:
        """Schedule the call in `seconds`, in place of any scheduled call; None: only cancel."""
        if self._due is not None:
            self._due.cancel()
        self._due = None if seconds is None else self._loop.call_later(seconds, self._come)

    def _come(self) -> None:
        self._due = None
        self._call()
