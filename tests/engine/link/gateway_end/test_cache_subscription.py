"""A subscription passes on cache events in order, and asks for a snapshot after a gap."""

from __future__ import annotations

import asyncio

from engine.link.cache_events import Added, CacheEvents, Cleared, EventsTaken, Subscribe
from engine.link.gateway_end.cache_subscription import TAKEN_EVERY, CacheSubscription
from engine.link.gateway_end.client import EngineClient
from tests.doubles.engine.cache_listener import CacheListener, split_keys
from tests.doubles.engine.engine_thread import EngineThread
from tests.engine.rigs.rig import generate
from tests.engine.rigs.streams import collect, welcomed


class Ends:
    """The messages that a subscription passed on, and those that it sent."""

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


def test_a_snapshot_whose_beginning_is_lost_is_asked_for_again() -> None:
    """Ask again for a snapshot whose beginning was lost, since the engine would not send that
    beginning again.
    """
    ends = Ends()
    ends.receive_snapshot(0)
    ends.receive(2, 3)
    assert ends.sent == [Subscribe()] * 2
    ends.receive(5)  # the lost event 4 may have begun the snapshot
    assert ends.sent == [Subscribe()] * 3
    ends.receive(6, 6, 5)
    assert ends.sent == [Subscribe()] * 3, "without another gap it is on its way"
    ends.receive_snapshot(7)
    assert ends.passed_on == [0, 7]


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


async def test_over_a_socket_a_client_hears_of_each_engine_anew(socket_path: str) -> None:
    listener = CacheListener()
    client = EngineClient(socket_path, on_cache_events=listener.hear)
    await client.start()
    try:
        for prompt in (range(12), range(20, 28)):
            request = generate("a", prompt, max_tokens=1)
            with EngineThread(socket_path):
                await welcomed(client)
                await collect(client, request)
                async with asyncio.timeout(60):  # seconds, reached only by a test that hangs
                    while set(listener.held) != set(split_keys(request.block_keys)):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            while client.welcome is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        await client.close()
    assert listener.kinds == ["Cleared", "Added"] * 2
