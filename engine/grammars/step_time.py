"""The time of a step in which grammars may hold Python's lock, shared by flows.

The library makes masks without the lock, but follows a token and finds forced ones with it: every
step waits meanwhile, whichever thread calls. So what a call takes is its flow's, and a row beyond
its flow's share of STEP_S is followed later, by the threads that make masks (`mask_threads.py`).

Knows: flows and seconds. Does not know: what takes them (`token_mask.py`).
"""

from __future__ import annotations

from collections import defaultdict

from engine.grammars.limits import LEAST_SHARE_S, STEP_S


class StepTime:
    """The time of the current step. Threads add to it without a lock: approximate."""

    def __init__(self, step_s: float = STEP_S) -> None:
        """Share `step_s` seconds of each step."""
        self._step_s = step_s
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._total = 0.0
        self._share = step_s

    def next_step(self) -> None:
        """Start a step: each flow that asked in the last step gets an equal share."""
        self._share = max(self._step_s / max(len(self._spent), 1), LEAST_SHARE_S)
        self._spent = defaultdict(float)
        self._total = 0.0

    def may(self, flow: str, needs: float) -> bool:
        """Tell whether a call of a flow that needs `needs` seconds fits into this step."""
        return self._total < self._step_s and self._spent[flow] + needs < self._share

    def may_draft(self, flow: str, needs: float) -> bool:
        """Tell whether a call that a step can do without fits: half of the share is left."""
        return self.may(flow, needs + self._share / 2)

    def spend(self, flow: str, seconds: float, *, is_late: bool = False) -> None:
        """Count a call of a flow; one that is late takes nothing of the other flows' time."""
        self._spent[flow] += seconds
        self._total += 0.0 if is_late else seconds
