"""The building of a step: its rows so far, and the token budget for further rows.

Elsewhere: the order of sequences (`scheduler.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.drafting.draft import Draft
from engine.scheduling.row_data import step_of
from engine.scheduling.scheduled_rows import (
    Scheduled,
    ScheduledRow,
    remaining_tokens,
    row_of,
    score_row,
    verify_row,
)
from engine.sequences.sequence import Sequence
from engine.step import PREFILL, SCORE
from storage.move import Move, TokenCopy

# The maximum number of scored tokens of a step. It is low because memory is reserved for the logits
# of each, over the whole vocabulary.
MOST_SCORED = 256


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The limits of one step: computed tokens, running sequences, seconds."""

    max_batch_tokens: int
    max_running: int
    # The maximum seconds of a step that has a decode without a gap target. None: no maximum.
    max_step_s: float | None = None
    # Number of pipeline stages, which compute steps of different sequences at the same time.
    stages: int = 1
    target_itl_s: float | None = None

    def __post_init__(self) -> None:
        if self.max_step_s is not None and self.max_step_s <= 0:
            raise ValueError("max_step_s must be more than 0 seconds")
        if self.target_itl_s is not None and self.target_itl_s <= 0:
            raise ValueError("target_itl_s must be more than 0 seconds")
        if not 0 < self.max_running <= self.max_batch_tokens:
            raise ValueError(
                "max_running must be in 1..max_batch_tokens: each takes a token a step"
            )


class StepBuilder:
    """The rows so far, and the token budget for further rows."""

    def __init__(self, budget: int) -> None:
        self.rows: list[ScheduledRow] = []
        self.moves: list[Move] = []
        self.copies: list[TokenCopy] = []
        self.started: list[Sequence] = []
        self._budget = budget
        self._may_score = MOST_SCORED

    @property
    def budget(self) -> int:
        """The token budget for further rows. It is 0 if no more tokens can be scored."""
        return self._budget if self._may_score else 0

    @budget.setter
    def budget(self, tokens: int) -> None:
        self._budget = tokens

    def add(self, sequence: Sequence) -> ScheduledRow:
        """Add a row of the sequence's uncomputed tokens, up to the budget."""
        if sequence.num_again:
            return self.verify(sequence, None)
        num_new = min(remaining_tokens(sequence), self.budget)
        if sequence.is_to_score:
            row = self._scored(sequence, num_new)
        else:
            row = row_of(sequence, _up_to_state(sequence, num_new))
        self.rows.append(row)
        self._count(row, row.num_new)
        return row

    def verify(self, sequence: Sequence, draft: Draft | None) -> ScheduledRow:
        """Add a row that verifies a draft after the sequence's last token."""
        row = verify_row(sequence, draft)
        self.rows.append(row)
        self._count(row, row.num_new)
        return row

    def stop_at_states(self) -> list[ScheduledRow]:
        """Shorten rows that must end at a recurrent state. Return the parts that are cut off.

        Such a position may become known after the row was added: there, another sequence that
        starts in this step diverges from the row's sequence.
        """
        rests = list[ScheduledRow]()
        for at, row in enumerate(self.rows):
            fits = row.num_new if row.kind is SCORE else _up_to_state(row.sequence, row.num_new)
            if fits < row.num_new and row.start == row.sequence.num_computed:
                self.rows[at] = row_of(row.sequence, fits)
                rests.append(row_of(row.sequence, row.num_new - fits, row.start + fits))
                self._count(row, fits - row.num_new)
        return rests

    def cut(self, tokens: int) -> list[ScheduledRow]:
        """Shorten prompt rows to `tokens` in total, the last rows first.

        Return the parts that are cut off. Each row keeps at least one token, because its sequence
        may start in this step.
        """
        rests = list[ScheduledRow]()
        prompts = [at for at, row in enumerate(self.rows) if row.kind is PREFILL]
        over = sum(self.rows[at].num_new for at in prompts) - tokens
        for at in reversed(prompts):
            row = self.rows[at]
            rest = min(over, row.num_new - 1)
            if rest <= 0:
                continue
            self.rows[at] = row_of(row.sequence, row.num_new - rest, row.start)
            rests.append(row_of(row.sequence, rest, row.end - rest))
            self._count(row, -rest)
            over -= rest
        return rests

    def drop(self, sequence: Sequence) -> None:
        """Remove the sequence's row, if it has one."""
        for row in [row for row in self.rows if row.sequence is sequence]:
            self.rows.remove(row)
            self._count(row, -row.num_new)

    def _scored(self, sequence: Sequence, num_new: int) -> ScheduledRow:
        before_last = sequence.prompt_len - 1 - sequence.num_computed
        return score_row(sequence, min(num_new, before_last, self._may_score))

    def _count(self, row: ScheduledRow, tokens: int) -> None:
        self._budget -= tokens
        if row.kind is SCORE:
            self._may_score -= tokens

    def step(self) -> Scheduled:
        """Build the step, and record that its sequences' data have been sent."""
        return step_of(self.rows, self.moves, self.copies)


def _up_to_state(sequence: Sequence, num_new: int) -> int:
    """Return how many of `num_new` tokens a row may compute before a state must be stored."""
    states = None if sequence.lease is None else sequence.lease.states
    if states is None:
        return num_new
    start, is_cut = sequence.num_computed, num_new < remaining_tokens(sequence)
    return states.row_end(start, start + num_new, is_cut=is_cut) - start
