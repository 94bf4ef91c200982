"""The boundary record between deciding a step and computing it.

The scheduler returns a `Step`; the runner computes it and returns one `Sampled` per row that
samples. Nothing else passes between them.

Knows: rows, seats, moves, tokens. Does not know: why a row is in a step, or tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from engine.messages import TokenLogprobs
from engine.sequence import Sequence
from prefix_cache.lease import Lease
from storage.move import Move


@dataclass(slots=True, eq=False)
class Row:
    """`num_new` tokens of one sequence, from position `start`, to be computed in this step.

    The other fields record how the sequence was when the row was made; they are not changed later.
    """

    sequence: Sequence
    start: int
    num_new: int
    end: int = field(init=False)  # first position behind the row: its context length
    samples: bool = field(init=False)  # it reaches the last token, so that the next is sampled
    lease: Lease | None = field(init=False)  # whose blocks it reads and writes

    def __post_init__(self) -> None:
        self.end = self.start + self.num_new
        self.samples = self.end == self.sequence.length
        self.lease = self.sequence.lease

    @property
    def is_pending(self) -> bool:
        """Whether the value of its last token is not known on the host yet."""
        return self.end > self.sequence.num_tokens

    @property
    def is_over(self) -> bool:
        """Whether the sequence has given back the row's blocks: the row's result is dropped."""
        return self.lease is not self.sequence.lease


@dataclass(frozen=True, slots=True)
class Step:
    """What one step computes: block copies first, then the rows, those with one token first."""

    rows: tuple[Row, ...]
    moves: tuple[Move, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed by the step."""
        return sum(row.num_new for row in self.rows)


class Sampled(NamedTuple):
    """The next token of one row. `token_id` is None where the logits were not finite."""

    token_id: int | None
    logprobs: TokenLogprobs | None = None


class Launched(Protocol):
    """A step on its way; the device may still be computing it."""

    def collect(self) -> list[Sampled]:
        """Wait for the step and return one `Sampled` per row with `samples`, in row order."""
        ...


class Runner(Protocol):
    """Computes steps, one after the other in the order they were launched.

    The only thing in the engine that holds tensors.
    """

    def launch(self, step: Step) -> Launched:
        """Start computing `step`: its moves, the forward pass, the sampling.

        The step before may still be on its way; a pending token is the one that it samples for the
        row's seat. A launch that raises leaves no effect that a later step depends on.
        """
        ...
