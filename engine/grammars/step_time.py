"""The time in each step for which grammars may hold Python's lock, divided among flows.

llguidance makes masks without the lock, but holds the lock to follow tokens. The whole step waits
for a call that holds the lock, in whichever thread. Each call's time is therefore charged to its
flow. If a flow's share of STEP_S is used up, its tokens are followed later (`mask_threads.py`).

Elsewhere: what the time is used for (`token_mask.py`).
"""

from __future__ import annotations

from collections import defaultdict

from engine.grammars.limits import LEAST_SHARE_S, STEP_S


class StepTime:
    """The time spent in the current step. It is approximate: threads update it without a lock."""

    def __init__(self, step_s: float = STEP_S) -> None:
        """Divide `step_s` seconds of each step among the flows."""
        self._step_s = step_s
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._total = 0.0
        self._share = step_s

    def next_step(self) -> None:
        """Start a step, with equal shares for the flows that called in the previous step."""
        self._share = max(self._step_s / max(len(self._spent), 1), LEAST_SHARE_S)
        self._spent = defaultdict(float)
        self._total = 0.0

    def may(self, flow: str, needs: float) -> bool:
        """Return whether the flow still has time in this step for a call of `needs` seconds."""
        return self._total < self._step_s and self._spent[flow] + needs < self._share

    def may_draft(self, flow: str, needs: float) -> bool:
        """Return whether a call to draft would leave at least half of the flow's share."""
        return self.may(flow, needs + self._share / 2)

    def spend(self, flow: str, seconds: float, *, is_late: bool = False) -> None:
        """Count a flow's call. A late call is charged to its flow, but not to the step."""
        self._spent[flow] += seconds
        self._total += 0.0 if is_late else seconds
