"""The random simulation, for as long as a test suite allows.

`python -m tests.engine.rigs.simulation` runs longer, and checks invariants after every step. Here
they are checked after every eighth step, which halves the time.
"""

from __future__ import annotations

import pytest

from tests.engine.rigs.simulation import Tally, simulate

STEPS = 5_000


@pytest.fixture(scope="module")
def tally() -> Tally:
    return simulate(STEPS, seed=1, check_every=8)


def test_every_request_was_told_what_its_prompt_gives_alone(tally: Tally) -> None:
    """Check the counts of events, which show how much was tested.

    A wrong answer would already have raised an error.
    """
    assert tally.steps >= STEPS
    assert tally.ends["length"] > STEPS / 20


@pytest.mark.parametrize(
    "copy",
    [
        "device to host: done",
        "device to disk: done",
        "host to disk: done",
        "host to device: done",
        "host to device: promised",
        "disk to device: done",
        "device to host: failed",
        "host to device: failed",
        "disk to device: lost",
    ],
)
def test_blocks_went_every_way_and_some_did_not_arrive(tally: Tally, copy: str) -> None:
    assert tally.copies[copy] > 0


def test_all_kinds_of_trouble_came_up(tally: Tally) -> None:
    assert tally.ends["cancelled"] > 0
    assert tally.ends["numeric_failure"] > 0
    assert tally.preemptions > 0
    assert tally.failed_loads > 0
    assert min(tally.cached.values()) > 0
