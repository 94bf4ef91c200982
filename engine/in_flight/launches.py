"""The launched steps. They are settled in order, and their times are measured.

A step for which the device has too little memory is tried again with fewer tokens.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from engine.components import Components
from engine.errors import EngineFailure
from engine.in_flight.masked_step import MaskedStep
from engine.scheduling.row_data import overwrites, unsent
from engine.scheduling.scheduled_rows import Scheduled
from engine.scheduling.sequence_events import AddressedEvent
from engine.scheduling.step_times import StepShape
from engine.sequences.sequence_cache import lease_of
from engine.step import Launched, has_drafts

OVER_S = 1e-4  # seconds; if the wait for a step was shorter, the step had already ended
NUM_REMEMBERED = 8
MARGIN_S = 0.001  # seconds added to the predicted time of a launch
# The minimum length of the running step, in launches, for which the next step is decided late.
SHORT = 4

# The seconds that a step waits for masks if step times are unknown, and the maximum wait.
UNKNOWN_S = 0.005
MOST_PATIENCE_S = 0.05


class Launches:
    """The launched steps of one engine. Used by one thread only."""

    def __init__(self, components: Components) -> None:
        # Maximum tokens of a step, lowered if memory is short; None: not lowered.
        self.budget: int | None = None
        self._runner = components.runner
        self._masks = components.masks
        self._settler = components.settler
        self._active = components.scheduler.active
        self._copies = components.copies
        self._times = components.times
        self._counters = components.counters
        self._clock = components.clock
        self._out_of_memory = components.out_of_memory
        self._overlaps = components.overlap_scheduling
        self._stages = components.stages
        self._under_way: deque[tuple[Scheduled, Launched, float]] = deque()
        # Last launched step, if its sampling is not launched yet.
        self._masked: MaskedStep | None = None
        self._launches: deque[float] = deque(maxlen=NUM_REMEMBERED)
        self._settled_at = 0.0
        self._ended_at: float | None = 0.0  # end of the last step; None if the host did not see it
        # Start of the earliest running step; may be a prediction.
        self._began_at: float | None = None
        self._num_refused = 0

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def verify_drafts(self) -> bool:
        """True if a launched step verifies drafts. The step's sequences wait for its samples."""
        return any(has_drafts(scheduled.step.rows) for scheduled, _, _ in self._under_way)

    def launch(self, scheduled: Scheduled) -> bool:
        """Launch the step. Return False if the device has too little memory."""
        launched_at = self._clock()
        try:
            launched = self._launched(scheduled)
        except self._out_of_memory:
            return False
        took = self._clock() - launched_at
        self._times.launched(StepShape.of(scheduled.step.rows), took)
        self._num_refused = 0
        self._settler.begin(scheduled)
        self._under_way.append((scheduled, launched, launched_at))
        return True

    def _launched(self, scheduled: Scheduled) -> Launched:
        if not any(row.is_masked for row in scheduled.rows):
            return self._runner.launch(scheduled.step)
        forward = self._runner.launch_forward(scheduled.step)
        self._masked = MaskedStep(scheduled, forward, self._masks)
        return self._masked

    def ask_for_masks(self) -> None:
        """Start making the masks of the last launched step, if it needs masks."""
        if self._masked is not None:
            self._masked.ask()

    def sample(self) -> list[AddressedEvent]:
        """Launch the sampling of the last launched step, if the sampling waits for masks.

        If the device has too little memory, one request with a constraint fails, and all other rows
        sample in a later step. Return the events of requests that ended or failed.
        """
        masked, self._masked = self._masked, None
        if masked is None:
            return []
        failing = None
        try:
            left_out = masked.sample(*self._patience())
        except self._out_of_memory:
            left_out, failing = masked.refuse()
        for row in left_out:
            self._settler.leave_out(row, self._clock())
        self._counters.rows_left_out += len(left_out)
        over = [self._settler.end(one, self._clock()) for one in masked.over]
        if failing is None or failing.is_over:
            return over
        error = EngineFailure("the device has no memory left for this request's grammar")
        return [*over, self._settler.fail(failing.sequence, error, self._clock())]

    def decided(self, seconds: float) -> None:
        """Record the seconds that the host took to decide and launch a step."""
        self._launches.append(seconds)

    def due(self) -> float | None:
        """Return the time when the next step must be decided to keep the device busy.

        Return None if the next step should be decided now, for example with several stages.
        Deciding late helps new requests, because a request that arrives after a step's launch must
        wait for that step:

            host    | decide, launch n+1 |  messages ........... | decide, launch n+2 |
            device  |  step n ...............| step n+1 .............................| step n+2
        """
        if len(self._under_way) != 1 or not self._launches or self._stages > 1:
            return None
        scheduled, _, launched_at = self._under_way[0]
        started_at = self._started_at(launched_at)
        takes = self._times.least(StepShape.of(scheduled.step.rows))
        if started_at is None or takes is None:
            return None
        # Assume the longest recent launch, because a step without a captured graph takes many times
        # as long to launch.
        ahead = max(self._launches) + MARGIN_S
        return started_at + takes - ahead if takes > SHORT * ahead else None

    def settle_next(self) -> list[AddressedEvent]:
        """Wait for the earliest launched step, and settle it."""
        refused = self.sample() if len(self._under_way) == 1 else []
        scheduled, launched, launched_at = self._under_way.popleft()
        step = scheduled.step
        looked = self._clock()
        sampled = launched.collect()
        now = self._clock()
        self._copies.complete_released(now)
        started_at = self._started_at(launched_at)
        # If no later step is launched, the host waits from the launch on, so it sees the step's
        # end.
        is_end_seen = now - looked >= OVER_S or not self._overlaps
        # Do not learn the time of a step that waited for masks, because later steps would then wait
        # even longer.
        is_held = isinstance(launched, MaskedStep) and launched.is_held
        began_at = self._predicted_start(launched_at) if started_at is None else started_at
        shape = StepShape.of(step.rows)
        if not is_held:
            self._times.gap(shape, now - self._settled_at)
        self._learn(shape, began_at, now, is_end_seen=is_end_seen, is_held=is_held)
        seconds = now - max(launched_at, self._settled_at)
        self._settled_at, self._ended_at = now, now if is_end_seen else None
        self._counters.steps += 1
        return refused + self._settler.settle(scheduled, sampled, now, seconds)

    def shrink_or_fail(self, scheduled: Scheduled) -> list[AddressedEvent]:
        """Lower the token budget or fail a request, after a launch had too little device memory.

        The first failure halves the budget. After each further failure, the request with the
        largest row fails. Sequences that started in this step start over, because their first block
        may be a copy that was not completed. Sequences whose recurrent state the step may have
        overwritten start over too. The other rows are computed again, and write the same values
        again. Return the event of the failed request.
        """
        now = self._clock()
        self._num_refused += 1
        unsent(scheduled)
        largest = max(scheduled.rows, key=lambda row: row.num_new).sequence
        for row, sent in zip(scheduled.rows, scheduled.step.rows, strict=True):
            lease = lease_of(row.sequence)
            if row.start == lease.cached_tokens or overwrites(sent, lease):
                self._active.preempt(row.sequence, now)
        if self._num_refused == 1:
            self.budget = scheduled.step.num_tokens // 2
            return []
        error = EngineFailure("the device has no memory left for this request")
        return [self._settler.fail(largest, error, now)]

    def _predicted_start(self, launched_at: float) -> float | None:
        return None if self._began_at is None else max(self._began_at, launched_at)

    def _learn(
        self,
        shape: StepShape,
        began_at: float | None,
        now: float,
        *,
        is_end_seen: bool,
        is_held: bool,
    ) -> None:
        times = self._times
        self._began_at = None
        if began_at is None:
            return
        if not is_end_seen and (takes := times.seconds(shape)):
            self._began_at = min(began_at + takes, now)
        if not is_held:
            learn = times.settled if is_end_seen else times.missed
            learn(shape, now - began_at)

    def _patience(self) -> tuple[float, float]:
        scheduled, _, launched_at = self._under_way[-1]
        times, shape = self._times, StepShape.of(scheduled.step.rows)
        takes = times.least(shape) or times.seconds(shape)
        if not takes:
            return UNKNOWN_S, 0.0
        started_at, now = self._started_at(launched_at), self._clock()
        idle_at = takes + (launched_at if started_at is None else started_at)
        return min(max(idle_at - self._ahead() - now, 0.0), MOST_PATIENCE_S), takes

    def _ahead(self) -> float:
        return median(self._launches) + MARGIN_S if self._launches else MARGIN_S

    def _started_at(self, launched_at: float) -> float | None:
        return launched_at if launched_at >= self._settled_at else self._ended_at
