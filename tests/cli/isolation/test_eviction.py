"""The attacker's gain in the eviction attack is computed from readings and decides the result."""

from __future__ import annotations

from random import Random

import pytest

from cli.isolation.eviction import LEVELS, EvictionFinding, Learnt, Observation, learnt
from cli.isolation.verdict import CONTROL_BITS, Outcome, eviction_outcome


def test_one_reading_alone_tells_nothing() -> None:
    assert learnt([(level, (1, 2)) for level in LEVELS * 4]).bits == 0


def test_a_reading_for_each_level_tells_it() -> None:
    found = learnt([(level, (level,)) for level in LEVELS * 40])
    assert found.bits == pytest.approx(2.32, abs=0.1)
    assert (found.trials, found.readings, found.chance) == (200, 5, 0)


@pytest.mark.parametrize("repeats", [4, 100])
def test_readings_at_random_tell_nothing_however_few_there_are(repeats: int) -> None:
    random = Random(1)
    trials: list[tuple[int, Observation]] = [
        (x, (random.random() < 0.5,)) for x in LEVELS * repeats
    ]
    found = learnt(trials)
    assert found.bits < 0.1 or found.chance > 0.05
    assert learnt([(level, (n,)) for n, level in enumerate(LEVELS * repeats)]).bits < 0.1


@pytest.mark.parametrize(
    ("across", "control", "outcome"),
    [
        (Learnt(trials=20, readings=1, bits=0, chance=1), 2.0, Outcome.PASSED),
        (Learnt(trials=20, readings=2, bits=0.04, chance=0.01), 2.0, Outcome.PASSED),
        (Learnt(trials=20, readings=5, bits=1.7, chance=0), 2.0, Outcome.LEAKS),
        (Learnt(trials=20, readings=5, bits=1.7, chance=0), 0.0, Outcome.LEAKS),
        (Learnt(trials=20, readings=2, bits=0.2, chance=0.3), 2.0, Outcome.INCONCLUSIVE),
        (Learnt(trials=20, readings=1, bits=0, chance=1), 0.1, Outcome.INCONCLUSIVE),
    ],
)
def test_the_verdict(across: Learnt, control: float, outcome: Outcome) -> None:
    one = Learnt(trials=20, readings=5, bits=control, chance=0)
    assert eviction_outcome(EvictionFinding(filled_tokens=1, across=across, control=one)) is outcome


@pytest.mark.parametrize("readings", range(1, len(LEVELS) + 1))
def test_one_trial_of_each_number_shows_nothing_and_two_do(readings: int) -> None:
    one = [(level, (number % readings,)) for number, level in enumerate(LEVELS)]
    assert learnt(one).bits <= CONTROL_BITS
    if readings == len(LEVELS):
        assert learnt(one * 2).bits > CONTROL_BITS
