"""When to stop asking a home that does not answer, and when to ask again.

Knows: failures in a row, one clock. Does not know: what failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FAILURES = 5
OPEN_S = 1.0


class Breaker:
    """Open after `failures` in a row; then one call every `open_s` seconds is let through."""

    def __init__(
        self,
        *,
        failures: int = FAILURES,
        open_s: float = OPEN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = failures
        self._open_s = open_s
        self._clock = clock
        self._failures = 0
        self._ask_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether calls are held back."""
        return self._failures >= self._most

    def allows(self) -> bool:
        """Whether a call may be tried now; who is told so must say what became of it."""
        if not self.is_open:
            return True
        now = self._clock()
        if now < self._ask_at:
            return False
        self._ask_at = now + self._open_s
        return True

    def succeeded(self) -> None:
        """A call was answered."""
        self._failures = 0

    def failed(self) -> None:
        """A call was not answered."""
        self._failures += 1
        if self.is_open:
            self._ask_at = self._clock() + self._open_s
