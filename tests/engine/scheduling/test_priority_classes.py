"""The balance between interactive and batch work."""

from __future__ import annotations

import pytest

from engine.scheduling.priority_classes import PriorityClasses


def both_waiting(share: float = 0.2, most_due: float = 100.0) -> PriorityClasses:
    classes = PriorityClasses(share, most_due=most_due)
    classes.entered("interactive")
    classes.entered("batch")
    return classes


def test_interactive_goes_first_until_batch_is_due() -> None:
    classes = both_waiting()
    assert classes.order()[0] == "interactive"
    classes.charge("interactive", 40)
    assert classes.order()[0] == "batch"
    classes.charge("batch", 10)
    assert classes.order()[0] == "interactive"


@pytest.mark.parametrize("share", [0.05, 1 / 8, 0.5])
def test_batch_gets_its_share_of_the_work(share: float) -> None:
    classes, done = both_waiting(share, 1000.0), {"interactive": 0, "batch": 0}
    for _ in range(5000):
        first = classes.order()[0]
        cost = 7 if first == "interactive" else 30
        classes.charge(first, cost)
        done[first] += cost
    assert done["batch"] / sum(done.values()) == pytest.approx(share, rel=0.02)


def test_batch_that_was_idle_is_due_nothing() -> None:
    classes = PriorityClasses(0.2, most_due=100.0)
    classes.entered("interactive")
    classes.charge("interactive", 1e6)
    classes.entered("batch")
    assert classes.order()[0] == "interactive"
    classes.charge("interactive", 1e6)
    classes.left("batch")
    classes.entered("batch")
    assert classes.order()[0] == "interactive"


def test_the_work_due_to_batch_is_bounded() -> None:
    classes = both_waiting(most_due=100.0)
    classes.charge("interactive", 1e9)
    classes.charge("batch", 100)
    assert classes.order()[0] == "interactive"


def test_batch_work_that_nobody_waited_for_is_no_debt() -> None:
    classes = PriorityClasses(0.2, most_due=100.0)
    classes.entered("batch")
    classes.charge("batch", 1e6)
    classes.entered("interactive")
    classes.charge("interactive", 1)
    assert classes.order()[0] == "batch"
