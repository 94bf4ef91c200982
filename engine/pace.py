"""How fast a flow's sequences start, to tell one that is refused when to come again.

Knows: starts, and the times at which sequences came. Does not know: a clock, or why a sequence
did not start.
"""

from __future__ import annotations

from collections import deque

UNKNOWN_S = 1.0  # told before anything was measured
MOST_S = 60.0
_SPAN_S = 10.0  # how far back is looked
_SAMPLES = 64


class Pace:
    """Starts of one flow, seen whenever one of its sequences comes."""

    def __init__(self) -> None:
        self._started = 0
        self._seen: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)  # (time, starts until then)

    def started(self) -> None:
        """A sequence started."""
        self._started += 1

    def came(self, now: float) -> None:
        """A sequence came at `now`, in seconds of any clock that moves on."""
        if not self._seen or now - self._seen[-1][0] >= _SPAN_S / _SAMPLES:
            self._seen.append((now, self._started))

    def seconds_to_a_place(self, now: float) -> float:
        """Seconds in which, at the pace of late, one sequence starts and leaves its place."""
        while len(self._seen) > 1 and now - self._seen[1][0] > _SPAN_S:
            self._seen.popleft()
        if not self._seen or now <= self._seen[0][0]:
            return UNKNOWN_S
        since, started = self._seen[0]
        starts = self._started - started
        seconds = now - since
        return min(MOST_S, max(UNKNOWN_S, seconds / starts if starts else seconds))
