from __future__ import annotations

from gateway.state.redis.link import Breaker
from tests.gateway.support.manual_clock import ManualClock


def opened(clock: ManualClock) -> Breaker:
    breaker = Breaker(clock, probe_after_s=1.0)
    for _ in range(5):
        clock.advance(0.3)
        assert breaker.admits()
        breaker.failed()
    return breaker


def test_five_failures_in_a_row_open_it() -> None:
    breaker = Breaker(ManualClock())
    for _ in range(4):
        breaker.failed()
    assert breaker.admits()
    breaker.failed()
    assert breaker.is_open
    assert not breaker.admits()


def test_a_success_in_between_starts_the_count_anew() -> None:
    breaker = Breaker(ManualClock())
    for _ in range(3):
        for _ in range(4):
            breaker.failed()
            assert not breaker.is_open
        breaker.succeeded()


def test_one_probe_at_a_time_goes_through() -> None:
    clock = ManualClock()
    breaker = opened(clock)
    clock.advance(0.99)
    assert not breaker.admits()
    clock.advance(0.01)
    assert [breaker.admits() for _ in range(3)] == [True, False, False]
    breaker.failed()
    clock.advance(0.99)
    assert not breaker.admits()
    clock.advance(0.01)
    assert breaker.admits()
    breaker.succeeded()
    assert not breaker.is_open
    assert [breaker.admits() for _ in range(3)] == [True, True, True]


def test_a_probe_without_an_outcome_does_not_block_the_next() -> None:
    clock = ManualClock()
    breaker = opened(clock)
    clock.advance(1)
    assert breaker.admits()
    clock.advance(1)
    assert breaker.admits()
