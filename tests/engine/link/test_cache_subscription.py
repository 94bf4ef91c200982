"""Events that are dropped, doubled and out of order: what is passed on, and what is asked for."""

from __future__ import annotations

from engine.link.cache_events import Added, CacheEvents, Cleared, EventsTaken, Subscribe
from engine.link.cache_subscription import TAKEN_EVERY, CacheSubscription


class Ends:
    """What a subscription has passed on, and what it has sent."""

    def __init__(self) -> None:
        self.passed_on: list[int] = []
        self.sent: list[Subscribe | EventsTaken] = []
        self.subscription = CacheSubscription(
            lambda events: self.passed_on.append(events.number), self.sent.append
        )

    def receive(self, *numbers: int) -> None:
        for number in numbers:
            self.subscription.receive(CacheEvents(number=number, changes=(Added("host", b""),)))

    def receive_snapshot(self, number: int) -> None:
        self.subscription.receive(CacheEvents(number=number, changes=(Cleared(),)))


def test_what_is_in_order_is_passed_on() -> None:
    ends = Ends()
    assert ends.sent == [Subscribe()]
    ends.receive_snapshot(0)
    ends.receive(1, 2, 2, 1, 3)
    assert ends.passed_on == [0, 1, 2, 3]
    assert ends.sent == [Subscribe()]


def test_after_a_gap_a_snapshot_is_asked_for_once_and_nothing_passed_on_before_it() -> None:
    ends = Ends()
    ends.receive_snapshot(0)
    ends.receive(2, 3, 4)
    assert ends.passed_on == [0]
    assert ends.sent == [Subscribe(), Subscribe()]
    ends.receive_snapshot(5)
    ends.receive(6)
    assert ends.passed_on == [0, 5, 6]
    ends.receive(8)
    assert ends.sent == [Subscribe()] * 3


def test_a_snapshot_that_comes_unasked_bridges_a_gap() -> None:
    ends = Ends()
    ends.receive_snapshot(0)
    ends.receive_snapshot(4)
    ends.receive(5)
    assert ends.passed_on == [0, 4, 5]
    assert ends.sent == [Subscribe()]


def test_the_engine_is_told_how_far_all_has_come() -> None:
    ends = Ends()
    ends.receive_snapshot(0)
    ends.receive(*range(1, 2 * TAKEN_EVERY + 1))
    assert ends.sent[1:] == [EventsTaken(TAKEN_EVERY - 1), EventsTaken(2 * TAKEN_EVERY - 1)]
