"""The ids of done flushes: the latest are kept, however many there were."""

from __future__ import annotations

from engine.queries.done_flushes import MOST_KNOWN, DoneFlushes, Dropped


def test_what_is_done_is_not_due_and_says_what_it_dropped() -> None:
    done = DoneFlushes(["before"])
    done.note("now", Dropped(7, ()))
    assert done.due({"before": None, "now": "a", "new": "b"}) == {"new": "b"}
    assert done.dropped("now") == Dropped(7, ())
    assert done.dropped("before") == done.dropped("new") == Dropped(0, None)


def test_of_too_many_the_oldest_are_forgotten() -> None:
    done = DoneFlushes(str(number) for number in range(MOST_KNOWN))
    assert not done.due({"0": None, "1": None}), "the control"
    done.note("new", Dropped(3))
    assert done.due({"0": None, "1": None, "new": None}) == {"0": None}
    assert done.dropped("new") == Dropped(3)
