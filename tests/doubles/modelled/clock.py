"""A simulated clock for a modelled device, its copies and its clients."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Time:
    """A simulated clock in seconds, with callbacks at given times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now

    def at(self, when: float, happens: Callable[[], None]) -> None:
        """Call `happens` when the clock reaches `when`."""
        heappush(self._due, (when, next(self._number), happens))

    def move(self, until: float) -> None:
        """Advance the clock to `until`, and call all callbacks that are due before."""
        while self._due and self._due[0][0] <= until:
            when, _, happens = heappop(self._due)
            self.now = max(self.now, when)
            happens()
        self.now = max(self.now, until)

    def next_due(self) -> float:
        """The time of the next callback."""
        return self._due[0][0] if self._due else float("inf")
