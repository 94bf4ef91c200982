"""Interactive before batch, with a share for batch: who of the two goes first.

While both wait, batch is due `share` of all work. What interactive sequences compute adds to
what is due, what batch ones compute takes from it, and batch goes first as long as something is
due. So batch can only fall behind by `most_due` and by what runs already, and interactive work
waits for no more batch work than that share. Whoever of the two waits alone has everything.

Batch that comes back after it was idle is due nothing; what it has had too much of it owes.

Knows: two counts and a balance in tokens. Does not know: flows or sequences.
"""

from __future__ import annotations

from engine.messages import Priority


class Classes:
    """The balance between the two priorities. `share` of 0 to 1, `most_due` in tokens."""

    def __init__(self, share: float, *, most_due: float) -> None:
        self._rate = share / (1 - share)  # due to batch for each token of interactive work
        self._most_due = most_due
        self._waiting: dict[Priority, int] = {"interactive": 0, "batch": 0}
        self._due = 0.0

    def order(self) -> tuple[Priority, Priority]:
        """Who goes first, and who then."""
        return ("batch", "interactive") if self._due > 0 else ("interactive", "batch")

    def entered(self, priority: Priority) -> None:
        """A sequence waits."""
        self._waiting[priority] += 1

    def left(self, priority: Priority) -> None:
        """A sequence waits no more."""
        self._waiting[priority] -= 1
        if not self._waiting["batch"]:
            self._due = min(self._due, 0.0)

    def charge(self, priority: Priority, cost: float) -> None:
        """Work was done; it counts where the other class was waiting."""
        if priority == "interactive" and self._waiting["batch"]:
            self._due = min(self._due + cost * self._rate, self._most_due)
        elif priority == "batch" and self._waiting["interactive"]:
            self._due -= cost
