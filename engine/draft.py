"""A step while it is being decided: its bounds, rows under one budget, the moves they need.

Knows: what a row takes of the budget. Does not know: whose turn it is (`scheduler.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.sequence import Sequence
from engine.step import Row, Step
from storage.move import Move


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Bounds of one step: tokens computed, sequences running, prompt tokens in special cases."""

    max_batch_tokens: int
    max_running: int
    beside_decodes: int | None = None  # tokens of all other rows; None: what decodes leave
    # Steps over which waiting prompts are spread beside decodes (`backlog.py`); 0: not at all.
    backlog_steps: int = 0
    # Tokens of the other flows' prompts while visitors may come (`visitors.py`): the least upper
    # bound. None: flows are never taken for visitors.
    beside_visitors: int | None = None

    def __post_init__(self) -> None:
        if self.beside_decodes is not None and self.beside_decodes < 1:
            raise ValueError("beside_decodes must be at least 1 token, or prompts never get on")
        if self.backlog_steps < 0:
            raise ValueError("backlog_steps must be 0 or more")
        if self.beside_visitors is not None and self.beside_visitors < 1:
            raise ValueError("beside_visitors must be at least 1 token, or prompts never get on")
        if not 0 < self.max_running <= self.max_batch_tokens:
            raise ValueError(
                "max_running must be in 1..max_batch_tokens: each takes a token a step"
            )


@dataclass(slots=True)
class Draft:
    """Rows so far, and the tokens that further rows may have (`budget`)."""

    budget: int
    rows: list[Row] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)  # whose blocks the moves may fill

    def add(self, sequence: Sequence) -> Row:
        """Add a row of what the sequence has to compute, as far as the budget reaches."""
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
        """Make a row longer, as far as its sequence and the budget go; returns the part added."""
        more = min(tokens_to_go(row.sequence) - row.num_new, self.budget)
        self.rows[self.rows.index(row)] = Row(row.sequence, row.start, row.num_new + more)
        self.budget -= more
        return Row(row.sequence, row.end, more)

    def step(self) -> Step:
        """The step, decodes before chunks."""
        rows = sorted(self.rows, key=_is_chunk)
        return Step(tuple(rows), tuple(self.moves))


def tokens_to_go(sequence: Sequence) -> int:
    """Tokens that a sequence has to compute; none once its last token is known or pending."""
    return 0 if sequence.is_full else sequence.length - sequence.num_computed


def _is_chunk(row: Row) -> bool:
    return row.num_new > 1
