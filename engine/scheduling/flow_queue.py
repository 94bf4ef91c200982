"""What a flow has in the queue: its credit, and the sequences that wait.

Knows: one flow. Does not know: whose turn it is (`queue.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.link.messages import Priority
from engine.scheduling.admission_rate import AdmissionRate
from engine.scheduling.sequence import Sequence


@dataclass(slots=True, eq=False)
class FlowQueue:
    """Of one flow. `weight` is its share of the work beside others; credit is in tokens."""

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
        """Those of a class, in order of arrival, a preempted one first."""
        return self.interactive if priority == "interactive" else self.batch
