"""The boundary record between deciding a step and computing it.

The scheduler returns a `Step`; the runner computes it and returns one `Sampled` per row that
samples. Nothing else passes between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.messages import TokenLogprobs
from engine.sequence import Sequence
from storage.move import Move


@dataclass(frozen=True, slots=True)
class Row:
    """`num_new` tokens of one sequence, from position `start`, to be computed in this step."""

    sequence: Sequence
    start: int
    num_new: int

    @property
    def end(self) -> int:
        """The first position behind what this step computes: the row's context length."""
        return self.start + self.num_new

    @property
    def samples(self) -> bool:
        """Whether the row reaches the sequence's last known token, so that the next is sampled."""
        return self.end == self.sequence.num_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """What one step computes: block copies first, then the rows, those with one token first."""

    rows: tuple[Row, ...]
    moves: tuple[Move, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed by the step."""
        return sum(row.num_new for row in self.rows)


@dataclass(frozen=True, slots=True)
class Sampled:
    """The next token of one row. `token_id` is None where the logits were not finite."""

    token_id: int | None
    logprobs: TokenLogprobs | None = None


class Launched(Protocol):
    """A step on its way; the device may still be computing it."""

    def collect(self) -> list[Sampled]:
        """Wait for the step and return one `Sampled` per row with `samples`, in row order."""
        ...


class Runner(Protocol):
    """Computes steps. The only thing in the engine that holds tensors."""

    def launch(self, step: Step) -> Launched:
        """Start computing `step`: its moves, the forward pass, the sampling."""
        ...
