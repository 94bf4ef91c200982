"""Blocks are sent as bytes up to the window, or as slots in messages of one namespace."""

from __future__ import annotations

import numpy as np

from engine.exchange.seal import Seal, SealedPlace
from engine.exchange.serving.sending import (
    FIRST_SLOTS,
    SLOTS_AT_ONCE,
    SLOTS_UNTAKEN,
    BlocksToSend,
    Sending,
)
from engine.exchange.wire import Ask, Block, Ended, PoolHandle, Slots
from prefix_cache.namespace import Namespace, NamespacePath

ASK = Ask(
    number=1,
    fingerprint=bytes(32),
    salt=bytes(16),
    spans=(),
    token_ids=b"",
    first=2,
    window=3,
    flow="flow",
)
WINDOW = 100  # number of blocks that the source sends unacknowledged
POOL = PoolHandle(b"handle", 0, 4096)


class Reader:
    """A reader that returns a block's slot as its bytes."""

    def read(self, slot: int) -> memoryview:
        return memoryview(slot.to_bytes(4, "little"))


A, B = Namespace(b"a" * 16), Namespace(b"b" * 16)


def blocks(first: int, end: int, *spans: tuple[int, Namespace]) -> BlocksToSend:
    """Return blocks whose values follow their number: block 7 has key 7, sixteen tokens 7, and slot
    17.
    """
    numbers = np.arange(first, end, dtype="<i4")
    return BlocksToSend(
        first=first,
        path=NamespacePath(((0, A), *spans)),
        keys=np.repeat(numbers, 4).tobytes(),
        token_ids=np.repeat(numbers, 16).tobytes(),
        slots=(10 + numbers).tobytes(),
    )


def sent(sending: Sending) -> list[Block | Slots]:
    """Return all messages that may be sent now."""
    found = []
    while (one := sending.next(Reader())) is not None:
        message = one[0]
        assert isinstance(message, Block | Slots)
        found.append(message)
        sending.done(one[2])
    return found


def test_blocks_are_sent_as_far_as_the_window_reaches() -> None:
    sending = Sending(ASK, 0.0, None, window=WINDOW)
    sending.add(blocks(2, 7))
    assert sent(sending) == [Block(1, 2), Block(1, 3), Block(1, 4)]
    assert sending.take(3) == 3
    assert sent(sending) == [Block(1, 5)]
    sending.stop(Ended(1, "", is_all=True))
    assert not sending.is_over
    assert sending.take(1000) == 6, "no more than was sent"
    assert sent(sending) == [Block(1, 6)]
    assert not sending.is_over
    sending.take(7)
    assert sending.is_over


def test_an_ask_for_a_larger_window_than_the_source_has_is_not_heeded() -> None:
    sending = Sending(ASK, 0.0, None, window=2)
    sending.add(blocks(2, 7))
    assert sent(sending) == [Block(1, 2), Block(1, 3)]


def test_slots_do_not_wait_for_a_window_of_bytes() -> None:
    sending = Sending(ASK, 0.0, POOL, window=WINDOW)
    sending.add(blocks(2, 2 + SLOTS_UNTAKEN + 5))
    messages = [one for one in sent(sending) if isinstance(one, Slots)]
    counts = [len(one.slots) // 4 for one in messages]
    assert counts[:2] == [FIRST_SLOTS, SLOTS_AT_ONCE]
    assert sum(counts) == SLOTS_UNTAKEN
    assert [one.first for one in messages] == [2 + sum(counts[:at]) for at in range(len(counts))]
    assert not sent(sending)
    sending.take(2 + SLOTS_AT_ONCE)
    [last] = sent(sending)
    assert isinstance(last, Slots)
    assert len(last.slots) // 4 == 5


def test_what_is_not_to_be_sent_to_its_end_is_over_at_once() -> None:
    sending = Sending(ASK, 0.0, None, window=WINDOW)
    sending.add(blocks(2, 7))
    sent(sending)
    sending.stop(Ended(1, "it takes too long", is_all=False))
    assert sending.is_over
    assert not sent(sending)


def test_a_message_of_slots_is_of_one_namespace_and_of_blocks_that_came_together() -> None:
    sending = Sending(ASK, 0.0, POOL, window=WINDOW)
    sending.add(blocks(2, 6, (3, B), (5, A)))
    sending.add(blocks(6, 6))
    sending.add(blocks(6, 9, (3, B), (5, A)))
    sending.stop(Ended(1, "", is_all=True))
    found = sending.found(9, {})
    seal = Seal(ASK.fingerprint, ASK.salt, found.salt)
    ends = [(2, 3, A), (3, 5, B), (5, 6, A), (6, 9, A)]
    for message, (first, end, namespace) in zip(sent(sending), ends, strict=True):
        assert isinstance(message, Slots)
        assert np.frombuffer(message.slots, "<i4").tolist() == [*range(10 + first, 10 + end)]
        one = blocks(first, end)
        place = SealedPlace(first, namespace, one.keys, one.token_ids)
        seal.check_slots(place, message.slots, message.seal)
    assert not sending.is_over
    sending.take(9)
    assert sending.is_over
