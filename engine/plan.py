"""A step in the making: its bounds, rows under one budget, the moves that they take along.

Knows: what a row takes of the budget. Does not know: whose turn it is (`scheduler.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.sequence import Sequence
from engine.step import Row, Step
from storage.move import Move


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Bounds of one step: tokens computed, sequences running, and tokens beside others."""

    max_batch_tokens: int
    max_running: int
    beside_decodes: int | None = None  # of all other rows; None: what decodes leave
    beside_visitors: int | None = None  # of others' prompts, at least; None: there are none

    def __post_init__(self) -> None:
        if self.beside_decodes is not None and self.beside_decodes < 1:
            raise ValueError("beside decodes some other token has to be computed")
        if self.beside_visitors is not None and self.beside_visitors < 1:
            raise ValueError("beside visitors some other token has to be computed")
        if not 0 < self.max_running <= self.max_batch_tokens:
            raise ValueError("every running sequence needs a token of the step's budget")


@dataclass(slots=True)
class Plan:
    """Rows so far, and the tokens that others may still have."""

    budget: int
    rows: list[Row] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)  # whose blocks the moves may fill

    def add(self, sequence: Sequence) -> Row:
        """A row of what the sequence has to go, as far as the budget reaches."""
        num_new = min(tokens_to_go(sequence), self.budget)
        row = Row(sequence, sequence.num_computed, num_new)
        self.rows.append(row)
        self.budget -= num_new
        return row

    def drop(self, sequence: Sequence) -> None:
        """Take back the sequence's row, if it has one."""
        for row in [row for row in self.rows if row.sequence is sequence]:
            self.rows.remove(row)
            self.budget += row.num_new

    def top_up(self, row: Row) -> Row:
        """Give a row more of what its sequence has to go; returns what it has got, as a row."""
        more = min(tokens_to_go(row.sequence) - row.num_new, self.budget)
        self.rows[self.rows.index(row)] = Row(row.sequence, row.start, row.num_new + more)
        self.budget -= more
        return Row(row.sequence, row.end, more)

    def step(self) -> Step:
        """The step, decodes before chunks."""
        rows = sorted(self.rows, key=_is_chunk)
        return Step(tuple(rows), tuple(self.moves))


def tokens_to_go(sequence: Sequence) -> int:
    """Tokens to compute; none for a sequence whose last token is known or on its way."""
    return 0 if sequence.is_full else sequence.length - sequence.num_computed


def _is_chunk(row: Row) -> bool:
    return row.num_new > 1
