"""A circuit breaker: stops asking a server that does not answer, and tries again now and then.

After `failures` in a row it is open: nobody asks, so nobody waits for a timeout. Every
`probe_after_s` seconds one caller is let through as a probe; if it succeeds, the breaker closes.
A probe that never reports back blocks nothing, because the next one is due by time alone.

Knows: counts and time. Does not know: what is asked.
"""

from __future__ import annotations

from collections.abc import Callable

FAILURES = 5
PROBE_AFTER_S = 1.0


class Breaker:
    """For one event loop. `monotonic` gives seconds."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        *,
        failures: int = FAILURES,
        probe_after_s: float = PROBE_AFTER_S,
    ) -> None:
        self._monotonic = monotonic
        self._limit = failures
        self._probe_after_s = probe_after_s
        self._failures = 0
        self._next_probe = 0.0

    @property
    def is_open(self) -> bool:
        """Whether only probes are let through."""
        return self._failures >= self._limit

    def admits(self) -> bool:
        """Whether to ask now; while open, True makes the caller the probe."""
        if not self.is_open:
            return True
        now = self._monotonic()
        if now < self._next_probe:
            return False
        self._next_probe = now + self._probe_after_s
        return True

    def succeeded(self) -> None:
        """An answer came."""
        self._failures = 0

    def failed(self) -> None:
        """No answer came."""
        self._failures += 1
        if self.is_open:
            self._next_probe = self._monotonic() + self._probe_after_s
