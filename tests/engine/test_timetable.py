"""When the next step is to be decided."""

from __future__ import annotations

import pytest

from engine.step import Row, Step
from engine.timetable import (
    MARGIN_S,
    MAX_KINDS,
    MIN_STEPS,
    MISSED,
    NUM_REMEMBERED,
    SHORT,
    Timetable,
)
from tests.engine.sequences import waiting

LAUNCH = 0.001
LONG = 0.02


def step_of(new: int = 512, decodes: int = 1) -> Step:
    """A step of so many rows of one token and a chunk."""
    rows = [Row(waiting(f"d{number}"), 7, 1) for number in range(decodes)]
    return Step((*rows, Row(waiting("chunk", prompt_len=4096), 0, new)))


def taught(*seconds: float, step: Step | None = None, launch: float = LAUNCH) -> Timetable:
    table = Timetable()
    table.launched(launch)
    for one in seconds:
        table.settled(step or step_of(), one)
    return table


def test_the_next_step_is_due_a_launch_before_the_end() -> None:
    table = taught(LONG, LONG)
    assert table.due(step_of(), begun=5.0) == pytest.approx(5.0 + LONG - LAUNCH - MARGIN_S)


def test_the_shortest_of_a_kind_counts() -> None:
    table = taught(2 * LONG, LONG, 3 * LONG)
    assert table.due(step_of(), 0.0) == pytest.approx(LONG - LAUNCH - MARGIN_S)


def test_but_only_of_the_last() -> None:
    table = taught(LONG, *[2 * LONG] * NUM_REMEMBERED)
    assert table.due(step_of(), 0.0) == pytest.approx(2 * LONG - LAUNCH - MARGIN_S)


def test_a_kind_that_is_not_known_yet_is_not_predicted() -> None:
    assert Timetable().due(step_of(), 0.0) is None
    assert taught(*[LONG] * (MIN_STEPS - 1)).due(step_of(), 0.0) is None
    table = taught(*[LONG] * MIN_STEPS)
    assert table.due(step_of(), 0.0) is not None
    assert table.due(step_of(new=2048), 0.0) is None


def test_an_unknown_kind_is_predicted_by_the_shortest_with_as_many_new_tokens() -> None:
    table = taught(LONG, LONG, step=step_of(decodes=1))
    for _ in range(MIN_STEPS):
        table.settled(step_of(decodes=9000), 2 * LONG)
    assert table.due(step_of(decodes=5000), 0.0) == pytest.approx(LONG - LAUNCH - MARGIN_S)


def test_a_step_that_differs_little_is_of_the_kind() -> None:
    table = taught(LONG, LONG, step=step_of(new=448, decodes=1))
    assert table.due(step_of(new=450, decodes=3), 0.0) is not None


def test_a_short_step_is_not_worth_it() -> None:
    short = SHORT * (LAUNCH + MARGIN_S)
    assert taught(short, short).due(step_of(), 0.0) is None
    assert taught(1.1 * short, 1.1 * short).due(step_of(), 0.0) is not None


def test_a_prediction_that_was_too_long_is_shortened_until_it_is_not() -> None:
    table = taught(LONG, LONG)
    table.missed(step_of(), LONG)
    assert table.due(step_of(), 0.0) == pytest.approx(MISSED * LONG - LAUNCH - MARGIN_S)
    table.missed(step_of(), MISSED * LONG)
    assert table.due(step_of(), 0.0) == pytest.approx(MISSED**2 * LONG - LAUNCH - MARGIN_S)


def test_a_host_that_came_late_makes_no_prediction_longer() -> None:
    table = taught(LONG, LONG)
    table.missed(step_of(), 3 * LONG)
    assert table.due(step_of(), 0.0) == pytest.approx(LONG - LAUNCH - MARGIN_S)


def test_one_launch_that_took_long_changes_nothing() -> None:
    table = taught(LONG, LONG)
    for seconds in (LAUNCH, 0.5, LAUNCH):
        table.launched(seconds)
    assert table.due(step_of(), 0.0) == pytest.approx(LONG - LAUNCH - MARGIN_S)


def test_kinds_are_bounded() -> None:
    table = Timetable()
    table.launched(LAUNCH)
    for number in range(MAX_KINDS + 1):
        for _ in range(MIN_STEPS):
            table.settled(step_of(new=2 + 64 * number), LONG)
    assert table.due(step_of(new=2), 0.0) is None
    assert table.due(step_of(new=2 + 64), 0.0) is not None
