"""The time of the engine's thread that grammars may take, by flow.

The library follows a grammar in microseconds, but some grammars take tens of milliseconds for each
token, and every step waits for it. What calls take beyond FREE_S each is a flow's debt, which
drains with a SHARE of the time.

Knows: flows and seconds. Does not know: what takes them (`token_mask`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.grammars.limits import DEBT_S, FREE_S, SHARE


class FlowTime:
    """The debts of all flows in one engine. For the engine's thread."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Take a clock `monotonic`, in seconds."""
        self._monotonic = monotonic
        self._debts: dict[str, tuple[float, float]] = {}  # seconds, and when they were owed

    def spend(self, flow: str, seconds: float) -> bool:
        """Count a call of a flow; return False where it is long and the flow owes too much."""
        if seconds <= FREE_S:
            return True
        debt = self.debt(flow) + seconds - FREE_S
        self._debts[flow] = debt, self._monotonic()
        return debt <= DEBT_S

    def debt(self, flow: str) -> float:
        """Return the seconds that a flow owes now."""
        found = self._debts.get(flow)
        if found is None:
            return 0.0
        debt = found[0] - (self._monotonic() - found[1]) * SHARE
        if debt > 0:
            return debt
        del self._debts[flow]
        return 0.0
