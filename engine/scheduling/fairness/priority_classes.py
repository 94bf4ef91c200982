"""The balance of two priorities: batch work has a guaranteed share of all work.

While sequences of both priorities wait, batch is entitled to `share` of the work. Batch is served
first whenever it has got less than that. At most `most_due` tokens can be owed to batch. If
sequences of only one priority wait, this priority gets all the work. If batch was idle, nothing is
owed to it when it returns.
"""

from __future__ import annotations

from engine.link.messages import Priority


class PriorityClasses:
    """The balance between the priorities. `share` is between 0 and 1. `most_due` is in tokens."""

    def __init__(self, share: float, *, most_due: float) -> None:
        self._rate = share / (1 - share)  # tokens owed to batch per token of interactive work
        self._most_due = most_due
        self._waiting: dict[Priority, int] = {"interactive": 0, "batch": 0}
        self._due = 0.0

    def order(self) -> tuple[Priority, Priority]:
        """Return both priorities. The first is to be served first."""
        return ("batch", "interactive") if self._due > 0 else ("interactive", "batch")

    def entered(self, priority: Priority) -> None:
        """Count a sequence that starts to wait."""
        self._waiting[priority] += 1

    def left(self, priority: Priority) -> None:
        """Count a sequence that has stopped waiting."""
        self._waiting[priority] -= 1
        if not self._waiting["batch"]:
            self._due = min(self._due, 0.0)

    def charge(self, priority: Priority, cost: float) -> None:
        """Charge work to a priority if sequences of the other priority wait."""
        if priority == "interactive" and self._waiting["batch"]:
            self._due = min(self._due + cost * self._rate, self._most_due)
        elif priority == "batch" and self._waiting["interactive"]:
            self._due -= cost
