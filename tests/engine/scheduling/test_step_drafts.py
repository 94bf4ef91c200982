"""Drafts of a step are bounded by its free batch slots and by the gap targets of its decodes."""

from __future__ import annotations

import numpy as np
import pytest

from engine.drafting.draft import Draft, NoDrafts
from engine.scheduling.step_builder import StepLimits
from engine.scheduling.step_drafts import StepDrafts
from engine.scheduling.step_times import StepShape, StepTimes
from engine.sequences.sequence import Sequence
from tests.engine.rigs.sequences import waiting

SLOTS = 64
LENGTH = 10


class SureDrafts(NoDrafts):
    """A stand-in that drafts `LENGTH` tokens for each row."""

    def propose(self, decodes: list[Sequence]) -> dict[Sequence, Draft]:
        return {one: Draft((7,) * LENGTH, "own") for one in decodes}


def decodes(count: int) -> list[Sequence]:
    """Make sequences in their decode phase, with space for many more tokens."""
    made = [waiting("decodes") for _ in range(count)]
    for sequence in made:
        sequence.tokens = np.zeros(SLOTS + LENGTH, np.int32)
        sequence.num_computed = sequence.num_tokens - 1
    return made


def drafted(target_s: float | None, *, rows: int = 4, is_measured: bool = True) -> int:
    """Return how many tokens are drafted in a step whose rows take 1 ms each."""
    times = StepTimes()
    for _ in range(8 if is_measured else 0):
        for count in range(1, SLOTS + 1):
            times.settled(StepShape(count, 8 * count), count / 1e3)
    made = StepDrafts(SureDrafts(), StepLimits(SLOTS, SLOTS), times)
    return sum(len(one.token_ids) for one in made.propose(decodes(rows), target_s).values())


def test_the_free_slots_bound_drafts_without_a_target() -> None:
    assert drafted(None) == 4 * LENGTH
    assert drafted(None, rows=8) == SLOTS - 8


@pytest.mark.parametrize("target_ms", [8, 16, 32])
def test_a_target_bounds_the_predicted_step(target_ms: int) -> None:
    assert drafted(target_ms / 1e3) == pytest.approx(target_ms - 4, abs=2)


def test_a_target_shorter_than_a_step_without_drafts_leaves_none() -> None:
    assert drafted(0.002) == 0


def test_a_long_target_and_unmeasured_times_bound_nothing() -> None:
    assert drafted(1.0) == 4 * LENGTH
    assert drafted(0.002, is_measured=False) == 4 * LENGTH
