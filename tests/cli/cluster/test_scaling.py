"""How many engines there should be, and what is predicted of one."""

from __future__ import annotations

import pytest

from cli.cluster.scaling import (
    DOWN_AFTER_S,
    UP_AFTER_S,
    Change,
    Fleet,
    ScalingBounds,
    Since,
    decide,
)
from cli.cluster.wait import predicted
from engine.link.view_messages import Sequences, SequenceState, SequenceView

BOUNDS = ScalingBounds(least=1, most=3, target_wait_s=2.0)


class Clocked:
    """Decisions in the order of time."""

    def __init__(self, bounds: ScalingBounds = BOUNDS) -> None:
        self.bounds = bounds
        self.since = Since()
        self.now = 1000.0

    def after(self, seconds: float, *waits: float, changing: int = 0) -> Change:
        self.now += seconds
        change, self.since = decide(Fleet(waits, changing), self.since, self.bounds, self.now)
        return change


def test_one_is_added_when_even_the_soonest_is_too_slow_for_a_while() -> None:
    clocked = Clocked()
    assert clocked.after(0, 9.0, 9.0) == 0
    assert clocked.after(UP_AFTER_S / 2, 9.0, 1.0) == 0, "one is soon enough: it begins anew"
    assert clocked.after(UP_AFTER_S, 9.0, 9.0) == 0
    assert clocked.after(UP_AFTER_S, 9.0, 9.0) == 1
    assert clocked.after(UP_AFTER_S, 9.0, 9.0, changing=1) == 0, "the one that comes may do"
    assert clocked.after(UP_AFTER_S, 9.0, 9.0, 9.0) == 0, "there are no more"


def test_one_goes_when_the_others_would_do_with_room_to_spare() -> None:
    clocked = Clocked()
    assert clocked.after(0, 0.1, 0.1) == 0
    assert clocked.after(DOWN_AFTER_S / 2, 0.3, 0.3) == 0, "what both have is too much for one"
    assert clocked.after(DOWN_AFTER_S, 0.1, 0.1) == 0
    assert clocked.after(DOWN_AFTER_S, 0.1, 0.1) == -1
    assert clocked.after(DOWN_AFTER_S, 0.0) == 0
    assert clocked.after(DOWN_AFTER_S, 0.0) == 0, "the floor"


def test_below_the_floor_there_is_no_wait_for_anything() -> None:
    clocked = Clocked(ScalingBounds(least=2, most=3, target_wait_s=2.0))
    assert clocked.after(0) == 1
    assert clocked.after(0, changing=1) == 1
    assert clocked.after(0, changing=2) == 0
    assert clocked.after(0, 0.0, changing=1) == 0


@pytest.mark.parametrize("load", [1.0, 3.5, 5.9, 100.0])
def test_a_load_that_stays_comes_to_rest(load: float) -> None:
    clocked, engines, changes = Clocked(), 1, 0
    for _ in range(1000):
        change = clocked.after(1.0, *[load / engines] * engines)
        engines, changes = engines + change, changes + abs(change)
    assert 1 <= engines <= 3
    assert changes == engines - 1, "it never went back"


def sequence(state: SequenceState, age_s: float, prompt: int, cached: int = 0) -> SequenceView:
    return SequenceView("r", "f", state, age_s, prompt, cached, 0)


def test_a_wait_is_what_is_to_be_computed_and_at_least_what_was_waited() -> None:
    listed = [sequence("decode", 90.0, 9000), sequence("prefill", 3.0, 1000, cached=500)]
    found = Sequences(query_id="", total=2, sequences=listed)
    assert predicted(found, 250.0) == 2.0
    waits = [*listed, sequence("waiting", 5.0, 100)]
    assert predicted(Sequences(query_id="", total=3, sequences=waits), 250.0) == 5.0
    assert predicted(Sequences(query_id="", total=300, sequences=waits), 250.0) == 240.0
    assert predicted(Sequences(query_id="", total=0, sequences=[]), 250.0) == 0.0
