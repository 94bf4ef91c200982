"""The queue of one flow: its credit, its waiting sequences and its admission rate.

Elsewhere: the order of flows (`queue.py`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from engine.link.messages import Priority
from engine.sequences.sequence import Sequence

MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0
_SPAN_S = 10.0
_SAMPLES = 64


class AdmissionRate:
    """The rate at which sequences of one flow start. It is sampled at each arrival."""

    def __init__(self) -> None:
        self._started = 0
        # Pairs of (time, number of starts before)
        self._seen: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)

    def started(self) -> None:
        """Count a sequence that started."""
        self._started += 1

    def came(self, now: float) -> None:
        """Record that a sequence arrived at `now`, in seconds of a monotonic clock."""
        if not self._seen or now - self._seen[-1][0] >= _SPAN_S / _SAMPLES:
            self._seen.append((now, self._started))

    def retry_after_s(self, now: float) -> float:
        """Return the expected seconds until there is a free place in the queue."""
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
    """The queue of one flow. `weight` is its relative share of work. `credit` is in tokens."""

    weight: float
    credit: float = 0.0
    forgiven: float = 0.0
    interactive: list[Sequence] = field(default_factory=list)
    batch: list[Sequence] = field(default_factory=list)
    admission_rate: AdmissionRate = field(default_factory=AdmissionRate)

    @property
    def debt(self) -> float:
        """The flow's debt in tokens, divided by its weight."""
        return max(-self.credit / self.weight, 0.0)

    @property
    def num_waiting(self) -> int:
        """The number of waiting sequences, of both priorities."""
        return len(self.interactive) + len(self.batch)

    def waiting(self, priority: Priority) -> list[Sequence]:
        """Return the sequences of a priority in order of arrival, preempted sequences first."""
        return self.interactive if priority == "interactive" else self.batch
