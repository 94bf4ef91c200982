from __future__ import annotations

from gateway.limits.breaker import Breaker
from tests.gateway.manual_clock import ManualClock


def test_it_opens_after_failures_in_a_row_and_asks_once_in_a_while() -> None:
    clock = ManualClock()
    breaker = Breaker(failures=3, open_s=1.0, clock=clock)
    for _ in range(2):
        breaker.failed()
    breaker.succeeded()
    for _ in range(2):
        breaker.failed()
    assert breaker.allows()
    breaker.failed()
    assert not breaker.allows()
    clock.advance(0.999)
    assert not breaker.allows()
    clock.advance(0.001)
    assert breaker.allows()  # the one that finds out
    assert not breaker.allows()
    breaker.failed()
    clock.advance(0.5)
    assert not breaker.allows()
    clock.advance(0.5)
    assert breaker.allows()
    breaker.succeeded()
    assert breaker.allows()
    assert not breaker.is_open
