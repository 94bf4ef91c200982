"""One flow's part of the queue: credit, waiting sequences, rate of admission.

Knows: one flow. Does not know: whose turn it is (`queue.py`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from engine.link.messages import Priority
from engine.sequences.sequence import Sequence

MIN_RETRY_S = 1.0  # minimum result of `retry_after_s`, also without measurements
MAX_RETRY_S = 60.0
_SPAN_S = 10.0  # seconds over which the admission rate is measured
_SAMPLES = 64


class AdmissionRate:
    """Rate of one flow's starts, sampled when one of its sequences arrives."""

    def __init__(self) -> None:
        self._started = 0
        self._seen: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)  # (time, starts so far)

    def started(self) -> None:
        """Count a sequence that started."""
        self._started += 1

    def came(self, now: float) -> None:
        """Record that a sequence arrived at `now`, in seconds of any monotonic clock."""
        if not self._seen or now - self._seen[-1][0] >= _SPAN_S / _SAMPLES:
            self._seen.append((now, self._started))

    def retry_after_s(self, now: float) -> float:
        """Return the seconds until a sequence starts and frees its place, at the recent rate."""
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
    """Queue of one flow. `weight` is its share of the work; its credit is in tokens."""

    weight: float
    credit: float = 0.0
    forgiven: float = 0.0  # the queue's `_uncontended` when this flow's debt was last updated
    interactive: list[Sequence] = field(default_factory=list)
    batch: list[Sequence] = field(default_factory=list)
    admission_rate: AdmissionRate = field(default_factory=AdmissionRate)

    @property
    def debt(self) -> float:
        """Tokens of debt, for a weight of 1."""
        return max(-self.credit / self.weight, 0.0)

    @property
    def num_waiting(self) -> int:
        """Number of waiting sequences of both priorities."""
        return len(self.interactive) + len(self.batch)

    def waiting(self, priority: Priority) -> list[Sequence]:
        """Return the sequences of a priority in order of arrival, preempted sequences first."""
        return self.interactive if priority == "interactive" else self.batch
