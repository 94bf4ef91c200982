"""An event loop with virtual time: when all tasks wait, its clock jumps to the next timer.

Use it for code that waits only for time, not for sockets, threads or processes.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _NeverWaits(selectors.SelectSelector):
    """A selector that never waits, because the loop's next timer may have been cancelled."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(None if timeout is None else 0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual `time()`, sleeps and timeouts."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_NeverWaits())

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        inner: Any = self
        if not inner._ready and inner._scheduled:
            # Advance at least a little, because a rounded time may be earlier than the timer
            # itself.
            self._now = max(inner._scheduled[0].when(), self._now + 1e-9)
        super()._run_once()  # type: ignore[misc]


def run_virtually(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` in virtual time, and return its result."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def now() -> float:
    """Return the virtual time, within a coroutine."""
    return asyncio.get_running_loop().time()
