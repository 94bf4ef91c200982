"""The budget of a step's prompt tokens, which bounds the delay of its decodes.

Every sequence in a step waits until the step has ended, so the step's time is bounded. The bound is
the shortest of these times:

    decodes with a target        their shortest target (`gap_targets.py`), divided by the ratio of
                                 gaps to predicted times that one gap in 200 exceeds
    other decodes in the step    `max_step_s`, or a part of the time of all waiting prompts if that
                                 is longer, because a first token may wait for all these prompts
    newcomers in the step        the time of the newcomers' tokens; other prompts fill the step up
    if there are no newcomers,   a part of the time of the flow's prompt, since the flow's next
    a flow that may return       request may arrive at any moment

A newcomer is the first sequence of a flow that was idle (`fairness/arrivals.py`). Newcomers come
first until they have got the tokens of a full step. Then other prompts get one step.

Two minimums keep prompts from starving. A target is raised until prompts get a fifth of the step's
time. Any other bound is raised to 2.5 times the step's time without prompts, because a step has a
fixed cost.

Step times are predicted (`step_times.py`). Of the sizes within the bound, the one with the least
time per prompt token is chosen. A step reads all weights for its decodes anyway, so a fraction of
that time is not counted for prompts. The fraction is the share of decodes among all sequences. When
the rows are known, those that would exceed a target are shortened (`tokens_within`).

Elsewhere: the sequences and their order (`scheduler.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.scheduling.scheduled_rows import ScheduledRow
from engine.scheduling.step_builder import StepLimits
from engine.scheduling.step_times import StepShape, StepTimes
from engine.step import PREFILL

PART_OF_BACKLOG = 1 / 15
# The maximum time of a step, as a share of the time of a returning flow's prompt.
PART_OF_RETURNING = 1 / 8
FEWEST_TIMES = 2.5  # minimum of a bound, as a multiple of the step's time without prompts
LEAST_SHARE = 1 / 5  # minimum share of a step's time for prompts
WAITING_COUNTS = 2  # number of decodes for which a waiting prompt counts
LEAST = 64  # minimum number of prompt tokens in a step
ALIKE = 0.05  # relative difference below which two times per token count as equal
LAUNCH_COUNTS = 1 / 5  # share of a launch's time that is added if most sequences decode
MOSTLY = 1 / 2  # share of decodes above which the smallest of equally good sizes is chosen
MOST_ANYWAY = 0.9  # maximum share of the decodes' time that is not counted for prompts
ADAPTS = 0.5  # weight of the last admitted prompt in the running means


class WaitingPrompts(NamedTuple):
    """The numbers of uncomputed prompt tokens of scheduled sequences and of queued sequences."""

    num_scheduled: int
    partial_tokens: int
    queued: int


class PrefillBudget:
    """The budget of prompt tokens of each step. Used by one thread only."""

    def __init__(self, limits: StepLimits, times: StepTimes) -> None:
        self._whole = limits.max_batch_tokens
        self._max_step_s = limits.max_step_s
        self._times = times
        self._tokens: float | None = None  # mean number of uncached tokens of a prompt
        self._context = 0.0
        self._owed = 0  # number of tokens that newcomers got while other prompts waited

    def admitted(self, tokens: int, start: int) -> None:
        """Update the means with a prompt whose tokens before `start` are cached."""
        if self._tokens is None:
            self._tokens, self._context = tokens, start
        self._tokens += ADAPTS * (tokens - self._tokens)
        self._context += ADAPTS * (start + tokens / 2 - self._context)

    @property
    def is_others_turn(self) -> bool:
        """True if other prompts come first now, after newcomers came first for long enough."""
        return self._owed > self._whole

    def decided(self, newcomers: int, others: int, *, others_wait: bool) -> None:
        """Record how many prompt tokens of newcomers and of other prompts a step has."""
        turn = self.is_others_turn or not others_wait
        self._owed = 0 if turn else max(self._owed + newcomers - others, 0)

    def of_newcomers(self, decodes: StepShape, most: int, target_s: float | None = None) -> int:
        """Return the budget for newcomers' prompt tokens, at most `most`."""
        if not self._is_bounded(target_s) or not decodes.decodes:
            return most
        if target_s is not None:
            bound = self._of_target(decodes, target_s)
        else:
            bound = self._at_least(decodes, self._max_step_s or 0.0)
        return max(self._that_fit(decodes, bound, most))

    def of_others(
        self,
        decodes: StepShape,
        newcomers: int,
        waiting: WaitingPrompts,
        returning: int | None,
        most: int,
        target_s: float | None = None,
    ) -> int:
        """Return the budget for other prompts' tokens, at most `most`.

        `returning` is the number of prompt tokens of a flow that may return, or None.
        """
        if not self._is_bounded(target_s) or not (waiting.num_scheduled or waiting.queued):
            return most
        wanted = waiting.partial_tokens + waiting.queued * (self._tokens or most)
        bound = self._bound(decodes, newcomers, wanted, returning, target_s)
        if bound is None or not most:
            return most
        sizes = self._that_fit(decodes, bound, newcomers + most)
        present = decodes.decodes + WAITING_COUNTS * (waiting.num_scheduled + waiting.queued)
        best = self._cheapest(decodes, sizes, newcomers + wanted, decodes.decodes / present)
        return max(best - newcomers, 0)

    def tokens_within(self, rows: Sequence[ScheduledRow], target_s: float) -> int | None:
        """Return how many prompt tokens of these rows can be computed within the target.

        Return None if all of them can. The rows are counted in their order.
        """
        prompts = [row for row in rows if row.kind is PREFILL]
        beside = StepShape.of(row for row in rows if row.kind is not PREFILL)
        if not prompts or not beside.decodes or not self._times.is_measured:
            return None
        bound, new = self._of_target(beside, target_s), sum(row.num_new for row in prompts)
        sizes = self._times.sizes(beside.decodes, new)
        fit = (size for size in reversed(sizes) if self._of_rows(beside, prompts, size) <= bound)
        best = next(fit, min(LEAST, sizes[0]))
        return None if best == new else best

    def _of_rows(self, beside: StepShape, prompts: Sequence[ScheduledRow], most: int) -> float:
        pairs, left = beside.pairs, most
        for row in prompts:
            new = min(row.num_new, left)
            pairs += new * (row.start + new / 2)
            left -= new
        return self._times.seconds(beside._replace(new=beside.new + most, pairs=pairs))

    def _is_bounded(self, target_s: float | None) -> bool:
        return self._times.is_measured and (self._max_step_s, target_s) != (None, None)

    def _bound(
        self,
        decodes: StepShape,
        newcomers: int,
        wanted: float,
        returning: int | None,
        target_s: float | None,
    ) -> float | None:
        bounds = list[float]()
        if decodes.decodes and target_s is None:
            bounds.append(max(self._max_step_s or 0.0, PART_OF_BACKLOG * self._alone(wanted)))
        if newcomers:
            bounds.append(self._seconds(decodes, newcomers))
        elif returning is not None:
            bounds.append(PART_OF_RETURNING * self._times.prefill(0, returning))
        usual = [self._at_least(decodes, min(bounds))] if bounds else []
        if decodes.decodes and target_s is not None:
            usual.append(self._of_target(decodes, target_s))
        return min(usual, default=None)

    def _at_least(self, decodes: StepShape, seconds: float) -> float:
        return max(seconds, FEWEST_TIMES * self._times.seconds(decodes))

    def _of_target(self, decodes: StepShape, target_s: float) -> float:
        """Return the seconds that a step may be predicted to take to meet `target_s`.

        The result may be longer than the target, so that prompts get their minimum share.
        """
        kept = target_s / self._times.late_ratio
        return max(kept, self._times.seconds(decodes) / (1 - LEAST_SHARE))

    def _that_fit(self, decodes: StepShape, seconds: float, most: int) -> dict[int, float]:
        fit = dict[int, float]()
        for size in self._times.sizes(decodes.decodes, most):
            takes = self._seconds(decodes, size)
            if fit and takes > seconds:
                break
            fit[size] = takes
        return {size: takes for size, takes in fit.items() if size >= min(LEAST, max(fit))}

    def _cheapest(
        self, decodes: StepShape, sizes: dict[int, float], wanted: float, part: float
    ) -> int:
        """Choose the step size with the least time per prompt token.

        `part` is the share of decodes among all sequences. If most sequences decode, the smallest
        of equally good sizes is chosen, and a part of the launch time is added, which is large for
        steps without a captured graph.
        """
        # Take the minimum, because decodes alone cannot take longer than with prompts.
        alone, mostly_decode = min(self._times.seconds(decodes), *sizes.values()), part > MOSTLY
        anyway = min(part, MOST_ANYWAY) * alone
        prices = dict[int, float]()
        for size, takes in sizes.items():
            ahead = LAUNCH_COUNTS * self._times.launch_seconds(size) if mostly_decode else 0.0
            prices[size] = (takes + ahead - anyway) / min(size, max(wanted, 1.0))
        least = min(prices.values())
        alike = [size for size, price in prices.items() if price <= least + ALIKE * abs(least)]
        return min(alike) if mostly_decode else max(alike)

    def _seconds(self, decodes: StepShape, new: int) -> float:
        shape = StepShape(decodes.decodes, decodes.keys, new, new * self._context)
        return self._times.seconds(shape)

    def _alone(self, tokens: float) -> float:
        return tokens / self._whole * self._seconds(StepShape(), self._whole)
