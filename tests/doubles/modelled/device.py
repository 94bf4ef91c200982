"""A modelled H200: a runner that computes nothing, but takes as long as an 8B model on one H200.

`replay.py` has the clients and the scheduler.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from engine.sequences.sequence import Sequence
from engine.step import Forward, Sampled, Step, count_decodes
from tests.doubles.modelled.clock import Time
from tests.doubles.row_owners import Running, owners_of


@dataclass(frozen=True, slots=True)
class StepModel:
    """The seconds of a step of an 8B model on an H200, fitted to results of
    `benchmarks.engine.step`.
    """

    of_itself: float = 4.0e-3
    token: float = 17.9e-6  # seconds of all GEMMs for one prompt token
    pair: float = 1.2e-9  # seconds of one prompt token's attention to one earlier key
    decode_key: float = 31e-9
    read_once: float = 0.0  # share of the decodes' keys that are read only once for several rows
    replayed: int = 1024  # maximum number of prompt tokens of a step that is replayed as a graph
    launch: float = 1.0e-3  # host seconds of a graph replay, and of a launch without a graph
    eager_launch: float = 6.0e-3

    def seconds(self, step: Step) -> float:
        """Return the seconds that the device takes."""
        decodes = count_decodes(step.rows)
        chunks = step.rows[decodes:]
        pairs = sum(row.num_new * (row.start + row.num_new / 2) for row in chunks)
        keys = sum(row.end for row in step.rows[:decodes]) * (1 - self.read_once)
        new = prompt_tokens(step)
        products = self.products(step.num_tokens - new, new)
        return self.of_itself + products + self.pair * pairs + self.decode_key * keys

    def products(self, decodes: int, new: int) -> float:
        """Return the seconds of prompt tokens' GEMMs. `of_itself` includes the GEMMs of decodes."""
        del decodes
        return self.token * new

    def launch_seconds(self, step: Step) -> float:
        """Return the seconds that the host takes to launch a step."""
        return self.launch if prompt_tokens(step) <= self.replayed else self.eager_launch


def prompt_tokens(step: Step) -> int:
    """Count the tokens of prompts in a step."""
    return sum(row.num_new for row in step.rows[count_decodes(step.rows) :])


@dataclass(frozen=True, slots=True)
class OnItsWay:
    """A launched step, whose computation ends at the time `over`."""

    time: Time
    over: float
    sampled: list[Sampled]

    def collect(self) -> list[Sampled]:
        """Wait for the step."""
        self.time.move(self.over)
        return self.sampled


@dataclass
class ModelledDevice:
    """A runner that computes nothing. Steps run one after another, for the model's seconds."""

    time: Time
    model: StepModel
    noise: float = 0.0  # maximum random delay of a step, as a share of its time
    idle: float = 0.0  # seconds in which no step ran
    steps: list[tuple[float, Step]] = field(default_factory=list)  # steps with their start times
    sampled_ids: int = 1  # number of different tokens that are sampled at random
    running: Running = list  # returns the running sequences, for `owners`
    # the sequence of each row, for each step
    owners: list[list[Sequence]] = field(default_factory=list)
    launched_at: list[float] = field(default_factory=list)  # launch times of these steps
    _over: float = 0.0
    _dice: random.Random = field(default_factory=lambda: random.Random(5))
    _ids: random.Random = field(default_factory=lambda: random.Random(5))

    def launch(self, step: Step) -> OnItsWay:
        """Begin the step when the previous step ends."""
        self._compute(step)
        count = sum(row.num_samples for row in step.rows)
        sampled = [Sampled(1 + self._ids.randrange(self.sampled_ids)) for _ in range(count)]
        return OnItsWay(self.time, self._over, sampled)

    def launch_forward(self, step: Step) -> Forward:
        """Raise an error, since no row has a constraint here."""
        raise AssertionError(step)

    def _compute(self, step: Step) -> None:
        self.launched_at.append(self.time.now)
        begun = max(self.time.now + self.model.launch, self._over)
        if self._over:
            self.idle += begun - self._over
        self.time.move(self.time.now + self.model.launch_seconds(step))
        seconds = self.model.seconds(step) * (1 + self.noise * self._dice.random())
        self._over = max(begun + seconds, self.time.now)
        self.steps.append((begun, step))
        self.owners.append(owners_of(step, self.running()))
