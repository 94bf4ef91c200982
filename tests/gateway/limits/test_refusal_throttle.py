"""One tenant's refusals are answered at a bounded rate, another's at once."""

from __future__ import annotations

from gateway.limits.refusal_throttle import BURST_S, LONGEST_S, PER_S, RefusalThrottle


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_first_are_answered_at_once_and_the_next_in_turn() -> None:
    throttle = RefusalThrottle(Clock())
    delays = [throttle.delay("a") for _ in range(200)]
    at_once = int(BURST_S * PER_S)
    assert delays[:at_once] == [0.0] * at_once
    assert delays[at_once : at_once + 5] == sorted(delays[at_once : at_once + 5])
    assert delays[at_once] > 0
    assert max(delays) == LONGEST_S


def test_another_tenant_does_not_wait() -> None:
    throttle = RefusalThrottle(Clock())
    held_back = [throttle.delay("a") for _ in range(200)][-1]
    assert held_back == LONGEST_S
    assert throttle.delay("b") == 0.0


def test_who_stops_asking_is_answered_at_once_again() -> None:
    clock = Clock()
    throttle = RefusalThrottle(clock)
    for _ in range(200):
        throttle.delay("a")
    assert throttle.delay("a") > 0  # positive control
    clock.now += BURST_S + LONGEST_S
    assert throttle.delay("a") == 0.0


def test_a_usual_rate_is_never_held_back() -> None:
    clock = Clock()
    throttle = RefusalThrottle(clock)
    for _ in range(500):
        assert throttle.delay("a") == 0.0
        clock.now += 1 / PER_S


async def test_it_waits_for_the_delay() -> None:
    throttle = RefusalThrottle(Clock())
    # returns at once; if it waited, the suite's time limit would fail the test
    await throttle.wait("a")
    assert throttle.delay("a") == 0.0
