"""The token bucket in whole numbers, compared with GCRA's original form in exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.token_bucket import ONE, Bucket, capacity, wait_s
from gateway.tenant_limits import MAX_BURST_S, MAX_RATE
from tests.examples import examples

MINUTE = 60_000_000  # microseconds


class VirtualScheduling:
    """GCRA by its definition: each request moves a theoretical arrival time one period later."""

    def __init__(self, rate: int, room: Fraction) -> None:
        self.period = Fraction(MINUTE, rate)
        self.tolerance = room * self.period
        self.arrival = Fraction(0)

    def admits(self, now: int, cost: int) -> bool:
        begin = max(self.arrival, Fraction(now))
        if begin + cost * self.period - now > self.tolerance:
            return False
        self.arrival = begin + cost * self.period
        return True


class Counting:
    """The bucket, used as in an account of a tenant."""

    def __init__(self, rate: int, burst_s: float) -> None:
        self.rate, self.room = rate, capacity(rate, burst_s)
        self.bucket = Bucket()

    def admits(self, now: int, cost: int) -> bool:
        drained = self.bucket.drained(self.rate, now)
        if drained.level + cost * ONE > self.room:
            return False
        self.bucket = Bucket(drained.level + cost * ONE, now)
        return True


arrivals = st.lists(
    st.tuples(st.integers(0, 90_000_000) | st.integers(0, 2_000), st.integers(1, 50)),
    min_size=1,
    max_size=60,
)


@examples(4)
@given(rate=st.integers(1, 5000), burst_s=st.sampled_from([0.5, 1, 7, 59.5, 60]), calls=arrivals)
def test_every_decision_is_that_of_exact_fractions(
    rate: int, burst_s: float, calls: list[tuple[int, int]]
) -> None:
    counting = Counting(rate, burst_s)
    model = VirtualScheduling(rate, Fraction(counting.room, ONE))
    now, admitted = 1, 0
    for gap, cost in calls:
        now += gap
        expected = model.admits(now, cost)
        assert counting.admits(now, cost) == expected
        admitted += cost * expected
        assert admitted <= Fraction(rate * (now - 1), MINUTE) + Fraction(counting.room, ONE)


@examples(4)
@given(rate=st.integers(1, 5000), level=st.integers(0, 10**12), more=st.integers(1, 100))
def test_waiting_for_the_stated_time_is_enough(rate: int, level: int, more: int) -> None:
    room = capacity(rate, 60)
    level, wanted = min(level, room), min(more * ONE, room)
    wait = wait_s(level + wanted - room, rate)
    later = Bucket(level, 0).drained(rate, round(wait * 1e6) + 1)
    assert later.level + wanted <= room


@pytest.mark.parametrize("rate", [1, 7, 60, 5000])
def test_the_stated_wait_is_never_longer_than_needed(rate: int) -> None:
    level = capacity(rate, None)
    assert wait_s(level, rate) == pytest.approx(60)
    assert Bucket(level, 0).drained(rate, 60_000_000).level == 0
    assert Bucket(level, 0).drained(rate, 59_999_999).level == rate
    assert wait_s(0, rate) == wait_s(-ONE, rate) == 0


def test_a_bucket_holds_what_comes_in_its_burst_or_else_a_minute() -> None:
    assert capacity(60, None) == capacity(60, 60) == 60 * ONE
    assert capacity(60, 1) == ONE
    assert capacity(600, 1.5) == 15 * ONE
    assert capacity(60, 0.25) == ONE, "one at least, or nobody would ever get in"


def test_what_is_filled_in_is_there_and_no_more_than_the_bucket_holds() -> None:
    at = 5_000_000
    assert Bucket(ONE, at).filled(2, 10 * ONE) == Bucket(3 * ONE, at)
    assert Bucket(9 * ONE, at).filled(2, 10 * ONE) == Bucket(10 * ONE, at)
    over = Bucket(12 * ONE, at)  # a bucket whose capacity has since been reduced
    assert over.filled(2, 10 * ONE) == over


def test_numbers_stay_whole_in_a_double_at_the_bounds() -> None:
    full = capacity(MAX_RATE, MAX_BURST_S)
    assert full < 2**53
    assert float(full) == full
    assert Bucket(full, 0).drained(MAX_RATE, 1).level == full - MAX_RATE


def test_a_clock_that_goes_back_gives_nothing_and_locks_nobody_out() -> None:
    rate = 60
    full = Bucket(capacity(rate, 60), 10**12)
    back = full.drained(rate, 10**12 - 3600 * 10**6)
    assert back.level == full.level
    a_second_later = back.drained(rate, back.at + 10**6)
    assert a_second_later.level == full.level - ONE


def test_a_clock_that_jumps_ahead_gives_one_burst_at_most() -> None:
    bucket = Bucket(capacity(60, 60), 0).drained(60, 10**15)
    assert bucket.level == 0
