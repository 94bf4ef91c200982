"""The part of the queue that is one flow's: credit, waiting sequences, rate of admission.

Knows: one flow. Does not know: whose turn it is (`queue.py`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from engine.link.messages import Priority
from engine.sequences.sequence import Sequence

MIN_RETRY_S = 1.0  # also the answer before anything was measured
MAX_RETRY_S = 60.0
_SPAN_S = 10.0  # seconds over which the pace is measured
_SAMPLES = 64


class AdmissionRate:
    """Starts of one flow, sampled when one of its sequences comes."""

    def __init__(self) -> None:
        self._started = 0
        self._seen: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)  # (time, starts until then)

    def started(self) -> None:
        """Count a sequence that started."""
        self._started += 1

    def came(self, now: float) -> None:
        """Record that a sequence came at `now`, in seconds of any monotonic clock."""
        if not self._seen or now - self._seen[-1][0] >= _SPAN_S / _SAMPLES:
            self._seen.append((now, self._started))

    def retry_after_s(self, now: float) -> float:
        """Return the seconds until, at the recent pace, one sequence starts and frees its place."""
        while len(self._seen) > 1 and now - self._seen[1][0] > _SPAN_S:
            self._seen.popleft()
        if not self._seen or now <= self._seen[0][0]:
            return MIN_RETRY_S
        since, started = self._seen[0]
        starts = self._started - started
        seconds = now - since
        return min(MAX_RETRY_S, max(MIN_RETRY_S, seconds / starts if starts else seconds))


@dataclass(slots=True, eq=False)
class FlowQueue:
    """Queue of one flow. `weight` is its share of the work beside others; credit is in tokens."""

    weight: float
    credit: float = 0.0
    forgiven: float = 0.0  # the queue's `_uncontended` when its debt was last looked at
    interactive: list[Sequence] = field(default_factory=list)
    batch: list[Sequence] = field(default_factory=list)
    admission_rate: AdmissionRate = field(default_factory=AdmissionRate)

    @property
    def debt(self) -> float:
        """Tokens owed, for a weight of 1."""
        return max(-self.credit / self.weight, 0.0)

    @property
    def num_waiting(self) -> int:
        """Sequences of both classes."""
        return len(self.interactive) + len(self.batch)

    def waiting(self, priority: Priority) -> list[Sequence]:
        """Return the sequences of a class in order of arrival, preempted ones first."""
        return self.interactive if priority == "interactive" else self.batch
