"""Threads compute masks. A slow mask delays no other, and flows take turns."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial

import pytest

from engine.grammars.limits import LATE_REST
from engine.grammars.mask_threads import MaskThreads
from engine.sequences.token_constraint import Bitmask, TokenConstraint, WantedMasks
from tests.doubles.constraints import bitmask
from tests.doubles.waiting import wait_for
from tests.gateway.support.manual_clock import ManualClock

LONG_S = 30.0  # seconds, reached only by a test that hangs


class Gated(TokenConstraint):
    """A constraint that computes its mask once its gate is open, and records the thread."""

    def __init__(self, flow: str = "flow", *, is_open: bool = True) -> None:
        self.flow = flow
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.made_in: list[str] = []
        if is_open:
            self.gate.set()

    def allowed(self) -> Bitmask:
        self.begun.set()
        assert self.gate.wait(LONG_S)
        self.made_in.append(threading.current_thread().name)
        return bitmask([1], 64)

    def advance(self, token_id: int) -> None:
        """Do nothing, since the mask is always the same."""


class Noted(TokenConstraint):
    """A constraint that records the order in which masks are computed."""

    def __init__(self, flow: str, order: list[str]) -> None:
        self.flow = flow
        self._order = order

    def allowed(self) -> Bitmask:
        self._order.append(self.flow)
        return bitmask([1], 64)

    def advance(self, token_id: int) -> None:
        """Do nothing, since the mask is always the same."""


class Broken(TokenConstraint):
    """A constraint that raises an error in place of a mask."""

    def __init__(self, flow: str) -> None:
        self.flow = flow

    def allowed(self) -> Bitmask:
        raise RuntimeError("it broke")

    def advance(self, token_id: int) -> None:
        """Do nothing, since there is no next mask."""


def wanted(constraints: Iterable[TokenConstraint]) -> list[WantedMasks]:
    return [WantedMasks(one) for one in constraints]


@pytest.fixture
def threads() -> Iterator[MaskThreads]:
    with closing(MaskThreads(3)) as threads:
        yield threads


def test_all_are_made_elsewhere_and_handed_back(threads: MaskThreads) -> None:
    constraints = [Gated() for _ in range(64)]
    threads.make(wanted(constraints)).wait(LONG_S)
    assert [one.made_in for one in constraints] == [["masks"]] * 64
    assert not any(one.is_busy for one in constraints)


def test_a_thread_that_waits_keeps_none(threads: MaskThreads) -> None:
    one = Gated()
    threads.make(wanted([one]))
    gone = weakref.ref(one)
    del one
    until = time.monotonic() + LONG_S
    while gone() is not None and time.monotonic() < until:
        time.sleep(0.001)
    assert gone() is None


def test_nothing_to_make_is_not_waited_for(threads: MaskThreads) -> None:
    making = threads.make(wanted([]))
    making.wait(LONG_S)
    assert not making.made.is_set(), "nobody has set it, so a wait for it would have lasted"
    assert not making.left


def test_a_slow_one_is_busy_and_holds_up_no_other(threads: MaskThreads) -> None:
    slow, quick = Gated(is_open=False), [Gated() for _ in range(8)]
    making = threads.make(wanted([slow, *quick]))
    assert slow.begun.wait(LONG_S)
    later = [Gated()]  # masks are computed in the order of their requests
    threads.make(wanted(later)).wait(LONG_S)
    assert all(one.made_in and not one.is_busy for one in (*quick, *later))
    assert slow.is_busy
    making.wait(0.0)
    assert slow.is_busy
    slow.gate.set()
    making.wait(LONG_S)
    assert not slow.is_busy


def test_who_is_busy_is_not_asked_again(threads: MaskThreads) -> None:
    slow = Gated(is_open=False)
    first = threads.make(wanted([slow]))
    threads.make(wanted([slow])).wait(LONG_S)
    slow.gate.set()
    first.wait(LONG_S)
    assert len(slow.made_in) == 1


def test_masks_that_break_keep_no_thread_and_no_turn(threads: MaskThreads) -> None:
    broken = [Broken(flow) for flow in "aabbcc"]
    threads.make(wanted(broken)).wait(LONG_S)
    assert not any(one.is_busy for one in broken)
    threads.make(wanted(after := [Gated(flow) for flow in "abc"])).wait(LONG_S)
    assert all(one.made_in for one in after)
    # the error is raised where the mask is used
    with pytest.raises(RuntimeError, match="it broke"):
        broken[0].allowed()


class TestFlows:
    def test_they_take_turns_and_each_flow_has_its_own_in_order(self) -> None:
        order = list[str]()
        with closing(MaskThreads(1)) as threads:
            first = Gated("first", is_open=False)
            threads.make(wanted([first]))
            assert first.begun.wait(LONG_S)
            flows = "aaaabbc"
            making = threads.make(wanted([Noted(flow, order) for flow in flows]))
            first.gate.set()
            making.wait(LONG_S)
        assert order == [*"abcabaa"]

    def test_slow_masks_of_one_keep_all_threads_but_one(self, threads: MaskThreads) -> None:
        slow = [Gated("slow", is_open=False) for _ in range(5)]
        making = threads.make(wanted(slow))
        assert all(one.begun.wait(LONG_S) for one in slow[:2])
        others = [Gated("other") for _ in range(8)]
        threads.make(wanted(others)).wait(LONG_S)
        assert all(one.made_in for one in others)
        assert not any(one.begun.is_set() for one in slow[2:])
        for one in slow:
            one.gate.set()
        making.wait(LONG_S)
        assert all(one.made_in for one in slow)

    def test_while_slow_masks_keep_all_threads_a_newcomer_waits_for_one_of_them(self) -> None:
        with closing(MaskThreads(2)) as threads:
            a, b = ([Gated(flow, is_open=False) for _ in range(3)] for flow in "ab")
            threads.make(wanted([*a, *b]))
            assert a[0].begun.wait(LONG_S)
            assert b[0].begun.wait(LONG_S)
            threads.make(wanted([newcomer := Gated("newcomer", is_open=False)]))
            a[0].gate.set()
            assert newcomer.begun.wait(LONG_S)
            assert not a[1].begun.is_set()
            for one in (newcomer, *a, *b):
                one.gate.set()

    def test_a_lone_thread_is_everybodys(self) -> None:
        with closing(MaskThreads(1)) as threads:
            threads.make(wanted(both := [Gated("a"), Gated("a")])).wait(LONG_S)
        assert all(one.made_in for one in both)


def test_closing_waits_for_what_is_under_way_and_drops_the_rest() -> None:
    threads = MaskThreads(1)
    slow, never = Gated(is_open=False), Gated()
    threads.make(wanted([slow, never]))
    assert slow.begun.wait(LONG_S)
    closing_it = threading.Thread(target=threads.close)
    closing_it.start()
    slow.gate.set()
    closing_it.join(LONG_S)
    assert not closing_it.is_alive()
    assert slow.made_in


def test_threads_that_never_had_anything_to_do_can_be_closed() -> None:
    before = threading.active_count()
    MaskThreads().close()
    assert threading.active_count() == before


class Behind(Noted):
    """A constraint that takes ten seconds of a test's clock to process a token."""

    is_behind = True

    def catch_up(self) -> float:
        self.is_behind = False
        return 10.0


def has_made(order: list[str], number: int) -> bool:
    return len(order) == number


def test_those_that_are_behind_catch_up_in_turns_and_leave_time_to_others() -> None:
    order: list[str] = []
    clock = ManualClock()
    one, same, other = (Behind(flow, order) for flow in ("a", "a", "b"))
    with closing(MaskThreads(2, monotonic=clock)) as threads:
        batch = threads.make([WantedMasks(each) for each in (one, same, other)])
        threads.make([WantedMasks(Noted("c", order))]).wait(LONG_S)
        wait_for(partial(has_made, order, 2), LONG_S)
        assert sorted(order) == ["a", "c"], "whoever is not behind waits for nobody"
        for number in (3, 4):
            clock.advance(10.0 * LATE_REST)
            threads.make([WantedMasks(Noted("c", []))]).wait(LONG_S)  # this request wakes a thread
            wait_for(partial(has_made, order, number), LONG_S)
        batch.wait(LONG_S)
    assert order[-2:] == ["b", "a"]
