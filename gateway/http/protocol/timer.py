"""A call that is due once, later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timer:
    """The timer of one call at most, `call`, which is called when its time has come."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
        self._loop = loop
        self._call = call
        self._due: asyncio.Handle | None = None

    @property
    def is_due(self) -> bool:
        """True if it is waited for."""
        return self._due is not None

    def soon(self) -> None:
        """Let it come once all others who wait have had their turns, unless one is due."""
        if self._due is None:
            self._due = self._loop.call_soon(self._come)

    def after(self, seconds: float) -> None:
        """Let it come in so many seconds, unless one is due."""
        if self._due is None:
            self._due = self._loop.call_later(seconds, self._come)

    def restart(self, seconds: float | None) -> None:
        """Let it come in so many seconds, whenever it was due before; None: never."""
        if self._due is not None:
            self._due.cancel()
        self._due = None if seconds is None else self._loop.call_later(seconds, self._come)

    def _come(self) -> None:
        self._due = None
        self._call()
