"""A runner that sleeps as long as a modelled device computes, and draws tokens that masks allow.

So what the host does beside a device is measured in real time, without one.

Knows: seconds of steps. Does not know: what a token is, or how masks are made.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.step import Bitmask, Sampled, Step
from tests.doubles.modelled.device import StepModel

WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class Sleeping:
    """A step that is over at a time of this machine's clock."""

    over: float
    masks: Sequence[Bitmask | None]  # of each token that is sampled; None: any token will do
    random: np.random.Generator

    def collect(self) -> list[Sampled]:
        """Draw while the device would compute, and wait for it."""
        sampled = [Sampled(_drawn(mask, self.random)) for mask in self.masks]
        time.sleep(max(self.over - time.perf_counter(), 0.0))
        return sampled


@dataclass
class PacedRunner:
    """Computes nothing, one step after the other, for as long as the model says."""

    model: StepModel
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))
    over: float = 0.0  # when the device has nothing more to do
    constrained: set[int] = field(default_factory=set)  # batch slots

    def launch(self, step: Step) -> Sleeping:
        """Begin after the step before it."""
        self.compute(step)
        return Sleeping(self.over, [None] * sum(row.samples for row in step.rows), self.random)

    def launch_forward(self, step: Step) -> PacedForward:
        """The same, up to the sampling."""
        self.compute(step)
        return PacedForward(self, step)

    def compute(self, step: Step) -> None:
        """Take the time of a forward pass."""
        for row in step.rows:
            if row.new is not None:
                change = (
                    self.constrained.add if row.new.is_constrained else self.constrained.discard
                )
                change(row.batch_slot)
        time.sleep(self.model.launch_seconds(step))
        self.over = max(time.perf_counter(), self.over) + self.model.seconds(step)


@dataclass(frozen=True, slots=True)
class PacedForward:
    """A forward pass whose sampling waits for masks."""

    runner: PacedRunner
    step: Step

    def sample(self, allowed: Sequence[Bitmask | None]) -> Sleeping:
        """Take the time of the sampling, of the host and of the device."""
        runner, left = self.runner, iter([None if one is None else one.copy() for one in allowed])
        masks = [
            next(left) if row.batch_slot in runner.constrained else None
            for row in self.step.rows
            if row.samples
        ]
        time.sleep(runner.model.late_launch)
        seconds = runner.model.masked + len(allowed) * runner.model.mask
        runner.over = max(time.perf_counter(), runner.over) + seconds
        return Sleeping(runner.over, masks, runner.random)

    def skip(self) -> Sleeping:
        """The device has the memory for everything."""
        raise AssertionError("nothing is skipped here")


def _drawn(mask: Bitmask | None, random: np.random.Generator) -> int:
    """Any token that the mask allows."""
    if mask is None:
        return 1
    words = np.flatnonzero(mask)
    if not len(words):
        return 1  # its row was left out
    word = int(words[random.integers(len(words))])
    bits = np.flatnonzero(np.unpackbits(mask[word : word + 1].view(np.uint8), bitorder="little"))
    return word * WORD_BITS + int(bits[random.integers(len(bits))])
