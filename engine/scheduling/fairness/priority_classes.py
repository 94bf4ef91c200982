"""The balance of two priorities: batch work has a guaranteed share beside interactive work.

While both priorities wait, batch is due `share` of all work. Batch goes first while any work is due
to it. The due work is at most `most_due` tokens. A priority that waits alone gets everything. When
batch returns after it was idle, no work is due to it.
"""

from __future__ import annotations

from engine.link.messages import Priority


class PriorityClasses:
    """The balance between the two priorities. `share` is between 0 and 1, `most_due` in tokens."""

    def __init__(self, share: float, *, most_due: float) -> None:
        self._rate = share / (1 - share)  # work due to batch per token of interactive work
        self._most_due = most_due
        self._waiting: dict[Priority, int] = {"interactive": 0, "batch": 0}
        self._due = 0.0

    def order(self) -> tuple[Priority, Priority]:
        """Return both priorities, the first to be served first."""
        return ("batch", "interactive") if self._due > 0 else ("interactive", "batch")

    def entered(self, priority: Priority) -> None:
        """Count a sequence that begins to wait."""
        self._waiting[priority] += 1

    def left(self, priority: Priority) -> None:
        """Count a sequence that has stopped waiting."""
        self._waiting[priority] -= 1
        if not self._waiting["batch"]:
            self._due = min(self._due, 0.0)

    def charge(self, priority: Priority, cost: float) -> None:
        """Charge work to a priority if the other priority waits."""
        if priority == "interactive" and self._waiting["batch"]:
            self._due = min(self._due + cost * self._rate, self._most_due)
        elif priority == "batch" and self._waiting["interactive"]:
            self._due -= cost
