"""Steps on their way: launched, waited for in order, timed; and a device without room for one.

Knows: which steps are on the device, how long steps took, how large one may be, and when the next
has to be decided (`timetable`). Does not know: what a step is made of (`scheduler`), what its
tokens mean (`settle`), or which requests may come before it is decided (`core`).
"""

from __future__ import annotations

from collections import deque

from engine.errors import EngineFailure
from engine.holdings import lease_of
from engine.parts import Parts
from engine.settle import Reply
from engine.step import Launched, Step
from engine.timetable import Timetable

# Prompt tokens from which on a step's time is used as a measurement: with fewer it is mostly the
# fixed cost of a step.
MEASURED_TOKENS = 64
OVER_S = 1e-4  # if the host waited for less, the step was over already


class Launches:
    """The steps on their way of one engine. One owner thread."""

    def __init__(self, parts: Parts) -> None:
        self.budget: int | None = None  # tokens of a step; lowered when the device had no room
        self._parts = parts
        self._under_way: deque[tuple[Step, Launched, float]] = deque()  # with its launch time
        self._timetable = Timetable()
        self._settled_at = 0.0  # when the last step was settled
        self._ended_at: float | None = 0.0  # when it ended; None: before the host looked
        self._num_refused = 0  # steps in a row for which the device had no room

    def __len__(self) -> int:
        return len(self._under_way)

    def launch(self, step: Step) -> bool:
        """Send the step on its way; False when the device had no room for it."""
        begun = self._parts.clock()
        try:
            launched = self._parts.runner.launch(step)
        except self._parts.out_of_memory:
            return False
        self._num_refused = 0
        self._parts.settler.begin(step)
        self._under_way.append((step, launched, begun))
        return True

    def decided(self, seconds: float) -> None:
        """Note how long the host took to decide and launch a step."""
        self._timetable.launched(seconds)

    def due(self) -> float | None:
        """When the next step has to be decided, so that the device does not idle; None: at once."""
        if len(self._under_way) != 1:
            return None
        step, _, launched_at = self._under_way[0]
        begun = self._begun(launched_at)
        return None if begun is None else self._timetable.due(step, begun)

    def settle_next(self) -> list[Reply]:
        """Wait for the step that was launched first, and settle it."""
        step, launched, launched_at = self._under_way.popleft()
        looked = self._parts.clock()
        sampled = launched.collect()
        now = self._parts.clock()
        self._parts.copies.settle_promised(now)
        begun = self._begun(launched_at)
        # Without a step ahead the host did nothing else since the launch.
        is_end_seen = now - looked >= OVER_S or not self._parts.steps_ahead
        if begun is not None and is_end_seen:
            self._timetable.settled(step, now - begun)
            self._measure(step, now - begun)
        elif begun is not None:
            self._timetable.missed(step, now - begun)
        seconds = now - max(launched_at, self._settled_at)
        self._settled_at, self._ended_at = now, now if is_end_seen else None
        self._parts.meter.steps += 1
        return self._parts.settler.settle(step, sampled, now, seconds)

    def shrink_or_fail(self, step: Step) -> list[Reply]:
        """After a launch for which the device had no room: lower the budget, then fail a request.

        The first time steps get smaller, after that the request with the largest row fails.
        Sequences that started in this step start over, since their first block may be a half-made
        copy. The other rows write again what they wrote.
        """
        now = self._parts.clock()
        self._num_refused += 1
        largest = max(step.rows, key=lambda row: row.num_new).sequence
        for row in step.rows:
            if row.start == lease_of(row.sequence).cached_tokens:
                self._parts.scheduler.active.preempt(row.sequence, now)
        if self._num_refused == 1:
            self.budget = step.num_tokens // 2
            return []
        error = EngineFailure("the device has no memory left for this request")
        return [self._parts.settler.fail(largest, error, now)]

    def _begun(self, launched_at: float) -> float | None:
        """When the device began a step; None: when the one before ended, which nobody saw."""
        return launched_at if launched_at >= self._settled_at else self._ended_at

    def _measure(self, step: Step, seconds: float) -> None:
        """Measure from a step with prompts what one of their tokens takes."""
        chunks = [row for row in step.rows if row.num_new > 1]
        tokens = sum(row.num_new for row in chunks)
        if tokens >= MEASURED_TOKENS:
            context = sum(row.num_new * row.end for row in chunks) // tokens
            self._parts.rates.prefill.add(tokens, context, seconds)
