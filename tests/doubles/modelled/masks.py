"""Masks that take time on a simulated clock, of constraints that forbid nothing.

Knows: seconds a mask, threads. Does not know: who is constrained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from engine.link.messages import SamplingParams
from engine.scheduling.token_constraint import TokenConstraint
from engine.step import Bitmask
from tests.doubles.modelled.clock import Time


@dataclass(frozen=True, slots=True)
class MasksInTime:
    """A `MaskMaker` that takes `seconds` of the clock for a mask, divided by its threads."""

    time: Time
    seconds: float
    threads: int

    def make(self, constraints: Iterable[TokenConstraint]) -> MadeBy:
        """Begin now."""
        some = sum(1 for _ in constraints)
        return MadeBy(self.time, self.time.now + self.seconds * -(-some // self.threads))


@dataclass(frozen=True, slots=True)
class MadeBy:
    """Masks that are made `when` it is that time."""

    time: Time
    when: float

    def wait(self, seconds: float) -> None:
        """Nobody is left out."""
        del seconds
        self.time.move(self.when)


class AllowsAll(TokenConstraint):
    """A constraint that costs what every one costs, and forbids nothing."""

    def allowed(self) -> Bitmask:
        """Nobody looks."""
        return np.full(1, -1, np.int32)

    def advance(self, token_id: int) -> None:
        """Nothing changes."""


def constrained_by_grammar(sampling: SamplingParams, flow: str) -> TokenConstraint | None:
    """A request with any grammar has a constraint."""
    del flow
    return None if sampling.grammar is None else AllowsAll()
