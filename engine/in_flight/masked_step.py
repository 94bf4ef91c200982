"""A step with constrained rows: the sampling is launched when the masks have been made.

    host    | launch forward n+1 | settle n | masks of n+1, replies | launch sampling n+1 | ...
    device  |  forward, sampling n ...| forward n+1 ....................| sampling n+1 | ...

The host waits for masks while the device computes, and only a little longer. A row whose mask is
late is left out, so other rows are not delayed. The row samples in a later step. A row that
verifies drafts samples as many tokens as it has masks.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from itertools import repeat

from engine.scheduling.row_data import unsent
from engine.scheduling.scheduled_rows import Scheduled, ScheduledRow
from engine.sequences.sequence import Sequence
from engine.sequences.token_constraint import Drafts, Making, MaskMaker, WantedMasks
from engine.step import Bitmask, Forward, Launched, Sampled

# The number of steps in which a left-out row's sequence gets no token. The next step has no row for
# this sequence.
LOST_STEPS = 2
LONGEST_PART = 1 / 4  # longest wait for late masks, as a share of a step's time
LEFT_OUT = Sampled(None, is_left_out=True)


class MaskedStep:
    """The rows of a step whose forward pass is launched. Implements `Launched`."""

    def __init__(self, scheduled: Scheduled, forward: Forward, masks: MaskMaker) -> None:
        self._scheduled = scheduled
        self._forward = forward
        self._masks = masks
        self._masked = [row for row in scheduled.rows if row.is_masked]
        self._making: Making | None = None
        self._launched: Launched | None = None
        self._left_out: frozenset[ScheduledRow] = frozenset()
        self._num_masks: dict[ScheduledRow, int] = {}
        self.is_held = False

    def ask(self) -> None:
        """Start making the masks, once the samples of the step before are settled."""
        lacking = list[WantedMasks]()
        for row in self._masked:
            constraint = row.sequence.constraint
            if not (row.is_over or constraint is None or constraint.has_mask):
                lacking.append(WantedMasks(constraint, _drafts(row)))
        self._making = self._masks.make(lacking)

    def sample(self, spare_s: float, step_s: float) -> frozenset[ScheduledRow]:
        """Wait for the masks and launch the sampling.

        Return the rows that are left out. The wait lasts up to `spare_s`, while the device needs
        nothing. Late masks extend the wait by a part of `step_s`, a step's time. The more rows have
        late masks, the larger the part. Errors of the runner are raised, after which the caller
        calls `refuse`.
        """
        if self._making is None:
            self.ask()
        assert self._making is not None
        self._making.wait(spare_s)
        left_out = self._late()
        if left_out:
            self.is_held = True
            part = LOST_STEPS * len(left_out) / len(self._scheduled.rows)
            self._making.wait(min(part, LONGEST_PART) * step_s)
            left_out = self._late()
        allowed, num_masks = list[Bitmask | None](), dict[ScheduledRow, int]()
        for row in self._masked:
            made = () if row in left_out else _masks(row)
            num_masks[row] = len(made)
            allowed += [*made, *repeat(None, row.num_samples - len(made))]
        self._launched = self._forward.sample(allowed)
        self._left_out, self._num_masks = left_out, num_masks
        return left_out

    def _late(self) -> frozenset[ScheduledRow]:
        return frozenset(
            row for row in self._masked if row.sequence.awaits_mask and not row.is_over
        )

    @property
    def over(self) -> list[Sequence]:
        """The sequences whose constraint was found complete while the masks were made."""
        found = (row for row in self._masked if row not in self._left_out and not row.is_over)
        constraints = ((row.sequence, row.sequence.constraint) for row in found)
        return [one for one, constraint in constraints if constraint and constraint.is_over]

    def refuse(self) -> tuple[frozenset[ScheduledRow], ScheduledRow]:
        """Sample no row, because the device has no memory for the sampling.

        All rows that sample are left out. Returns the left-out rows, and a constrained row, whose
        request fails. Masks would have taken most of the memory.
        """
        self._launched = self._forward.skip()
        unsent(self._scheduled)
        self._left_out = frozenset(row for row in self._scheduled.rows if row.samples)
        return self._left_out, self._masked[-1]

    def collect(self) -> list[Sampled]:
        """Wait for the step. Return the rows' samples, with `LEFT_OUT` for tokens not sampled."""
        assert self._launched is not None
        sampled = iter(self._launched.collect())
        values = list[Sampled]()
        for row in self._scheduled.rows:
            most = 0 if row in self._left_out else self._num_masks.get(row, row.num_samples)
            for number in range(row.num_samples):
                value = next(sampled, LEFT_OUT)
                values.append(value if number < most else LEFT_OUT)
        return values


def _drafts(row: ScheduledRow) -> Drafts:
    return () if row.draft is None else row.draft.token_ids


def _masks(row: ScheduledRow) -> SequenceOf[Bitmask]:
    constraint = row.sequence.constraint
    return () if row.is_over or constraint is None else constraint.allowed_after(_drafts(row))
