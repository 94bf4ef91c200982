"""Masks that take time on a simulated clock, of constraints that forbid nothing.

Knows: seconds a mask, threads. Does not know: who is constrained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from engine.link.messages import SamplingParams
from engine.scheduling.token_constraint import TokenConstraint
from engine.step import Bitmask
from tests.doubles.modelled.clock import Time


@dataclass(slots=True)
class MasksInTime:
    """A `MaskMaker` that takes `seconds` of the clock for a mask, divided by its threads."""

    time: Time
    seconds: float
    threads: int
    _free_at: float = 0.0

    def make(self, constraints: Iterable[TokenConstraint]) -> MadeBy:
        """Begin once what was asked for before is made."""
        each = self.seconds / self.threads
        for one in constraints:
            if not one.is_busy:
                one.is_busy = True
                self._free_at = max(self._free_at, self.time.now) + each
                self.time.at(self._free_at, partial(_made, one))
        return MadeBy(self.time, self._free_at)


@dataclass(frozen=True, slots=True)
class MadeBy:
    """Masks that are all made `when` it is that time."""

    time: Time
    when: float

    def wait(self, seconds: float) -> None:
        """Until then, or for so long."""
        self.time.move(min(self.when, self.time.now + seconds))


class AllowsAll(TokenConstraint):
    """A constraint that costs what every one costs, and forbids nothing."""

    has_mask = False

    def allowed(self) -> Bitmask:
        """Nobody looks."""
        return np.full(1, -1, np.int32)

    def advance(self, token_id: int) -> None:
        """Another mask is needed."""
        self.has_mask = False


def _made(constraint: TokenConstraint) -> None:
    constraint.is_busy = False
    if isinstance(constraint, AllowsAll):
        constraint.has_mask = True


def constrained_by_grammar(sampling: SamplingParams, flow: str) -> TokenConstraint | None:
    """A request with any grammar has a constraint."""
    del flow
    return None if sampling.grammar is None else AllowsAll()
