"""A step that has rows with constraints. Its sampling is launched when the masks have been made.

    host    | launch forward n+1 | settle n | masks of n+1, replies | launch sampling n+1 | ...
    device  |  forward, sampling n ...| forward n+1 ....................| sampling n+1 | ...

The host waits for masks while the device computes, and only a little longer. A row whose mask is
late is left out of the sampling, so that it does not delay other rows. It samples in a later step.
A row that verifies drafts samples as many tokens as it has masks.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from itertools import repeat

from engine.scheduling.row_data import unsent
from engine.scheduling.scheduled_rows import Scheduled, ScheduledRow
from engine.sequences.sequence import Sequence
from engine.sequences.token_constraint import Drafts, Making, MaskMaker, WantedMasks
from engine.step import Bitmask, Forward, Launched, Sampled

# The number of steps in which the sequence of a left-out row gets no token: this step and the next,
# which was scheduled without the sequence.
LOST_STEPS = 2
LONGEST_PART = 1 / 4  # maximum wait for late masks, as a share of a step's time
LEFT_OUT = Sampled(None, is_left_out=True)


class MaskedStep:
    """A step whose forward pass is launched before its sampling. Implements `Launched`."""

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
        """Start making the masks. Call after the samples of the step before are settled."""
        lacking = list[WantedMasks]()
        for row in self._masked:
            constraint = row.sequence.constraint
            if not (row.is_over or constraint is None or constraint.has_mask):
                lacking.append(WantedMasks(constraint, _drafts(row)))
        self._making = self._masks.make(lacking)

    def sample(self, spare_s: float, step_s: float) -> frozenset[ScheduledRow]:
        """Wait for the masks and launch the sampling.

        Return the rows that are left out. The wait takes at most `spare_s` seconds, in which the
        device still has work. If masks are late, the wait goes on for a fraction of `step_s`, the
        seconds of a step. The fraction grows with the number of rows whose masks are late. If the
        runner raises an error, the caller calls `refuse`.
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
        """The sequences whose grammar was found to be complete while the masks were made."""
        found = (row for row in self._masked if row not in self._left_out and not row.is_over)
        constraints = ((row.sequence, row.sequence.constraint) for row in found)
        return [one for one, constraint in constraints if constraint and constraint.is_over]

    def refuse(self) -> tuple[frozenset[ScheduledRow], ScheduledRow]:
        """Skip the sampling of all rows, because the device has too little memory for it.

        Return the rows that are left out, and one row with a constraint. The caller fails that
        row's request, because masks take most of the memory for sampling.
        """
        self._launched = self._forward.skip()
        unsent(self._scheduled)
        self._left_out = frozenset(row for row in self._scheduled.rows if row.samples)
        return self._left_out, self._masked[-1]

    def collect(self) -> list[Sampled]:
        """Wait for the step. Return the rows' samples, or `LEFT_OUT` for each missing sample."""
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
