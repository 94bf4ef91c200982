"""The targets for gaps between an answer's tokens, and the counts of gaps that exceed them.

    of a sequence           the tenant's target, else the engine's target (`--target-itl-ms`)
    of a batch request      none, because batch work is less urgent
    of a step               the shortest target of its decodes

A target is met if at most 1 % of the gaps exceed it. A long gap counts even if a preemption or a
load caused it. The log reports when targets begin to be missed, and when they are met again.

Elsewhere: the length of steps (`prefill_budget.py`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from engine.link.stats.gap_stats import GapStats
from engine.scheduling.scheduled_rows import ScheduledRow
from engine.scheduling.step_builder import StepLimits
from engine.scheduling.step_times import StepShape, StepTimes
from engine.sequences.sequence import Sequence

PERIOD_S = 5.0  # seconds of one counting period
NUM_PERIODS = 12  # number of remembered periods, together one minute
FEWEST_GAPS = 100  # minimum number of gaps in the last minute before anything is logged
_log = logging.getLogger(__name__)


class GapTargets:
    """The gap targets of sequences, and counts of gaps. Used by one thread only."""

    def __init__(self, limits: StepLimits, times: StepTimes) -> None:
        self._own_s, self._stages = limits.target_itl_s, limits.stages
        self._times = times
        self._gaps = self._late = self._late_before = 0
        # (gaps, late gaps) of each period.
        self._recent: deque[tuple[int, int]] = deque(maxlen=NUM_PERIODS)
        self._period_gaps = self._period_late = 0
        self._period_ends: float | None = None
        self._alone_s = 0.0
        self._is_missed = False

    def of(self, sequence: Sequence) -> float | None:
        """Return a sequence's gap target in seconds, or None if it has no target."""
        if sequence.priority == "batch":
            return None
        return sequence.target_itl_s or self._own_s

    def of_step(self, decodes: Iterable[Sequence]) -> float | None:
        """Return the maximum seconds of a step with these decodes, or None without a target.

        With several stages, a step of one stage gets an equal fraction of the gap.
        """
        targets = (self.of(sequence) for sequence in decodes)
        shortest = min((one for one in targets if one is not None), default=None)
        return None if shortest is None else shortest / self._stages

    def sent(self, sequence: Sequence, now: float) -> None:
        """Count the gap before a token that is sent at `now`. Tokens sent together have no gap."""
        before, sequence.sent_at = sequence.sent_at, now
        if before is None or before == now:
            return
        target_s = self.of(sequence)
        if target_s is not None:
            self._count(now, is_late=now - before > target_s)

    def settled(self, rows: Iterable[ScheduledRow]) -> None:
        """If the last step was late, remember the predicted seconds of its decodes alone."""
        if self._late > self._late_before:
            self._late_before = self._late
            decodes = StepShape.of(rows)._replace(new=0, pairs=0.0)
            self._alone_s = self._times.seconds(decodes) * self._stages

    def stats(self) -> GapStats:
        """Return the counts since the start and in the last minute."""
        recent = [*self._recent, (self._period_gaps, self._period_late)]
        return GapStats(
            target_s=self._own_s or 0.0,
            gaps=self._gaps,
            late=self._late,
            recent_gaps=sum(gaps for gaps, _ in recent),
            recent_late=sum(late for _, late in recent),
            one_s=self._times.decodes(1) * self._stages,
            alone_s=self._alone_s,
        )

    def _count(self, now: float, *, is_late: bool) -> None:
        if self._period_ends is None:
            self._period_ends = now + PERIOD_S
        while now >= self._period_ends:
            self._recent.append((self._period_gaps, self._period_late))
            self._period_gaps = self._period_late = 0
            self._period_ends = max(self._period_ends + PERIOD_S, now - NUM_PERIODS * PERIOD_S)
            self._say()
        self._gaps += 1
        self._period_gaps += 1
        self._late += is_late
        self._period_late += is_late

    def _say(self) -> None:
        stats = self.stats()
        if stats.recent_gaps < FEWEST_GAPS or stats.is_missed == self._is_missed:
            return
        self._is_missed = stats.is_missed
        if stats.is_missed:
            _log.warning("%s", stats.describe())
        else:
            _log.info("gaps between tokens keep to their targets again")
