"""How fast the sequences of a flow start, so that a refusal can say when to retry."""

from __future__ import annotations

from collections import deque

MIN_RETRY_S = 1.0  # also the answer before anything was measured
MAX_RETRY_S = 60.0
_SPAN_S = 10.0  # over which the pace is measured
_SAMPLES = 64


class AdmissionRate:
    """Starts of one flow, sampled when one of its sequences comes."""

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

    def retry_after_s(self, now: float) -> float:
        """Seconds until, at the recent pace, one sequence starts and so frees its place."""
        while len(self._seen) > 1 and now - self._seen[1][0] > _SPAN_S:
            self._seen.popleft()
        if not self._seen or now <= self._seen[0][0]:
            return MIN_RETRY_S
        since, started = self._seen[0]
        starts = self._started - started
        seconds = now - since
        return min(MAX_RETRY_S, max(MIN_RETRY_S, seconds / starts if starts else seconds))
