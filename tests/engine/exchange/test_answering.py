"""The thread that sends blocks: windows, askers that are gone, and frames that say nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zmq

from engine.exchange.answering import Answering, Asked, Asker, Gone
from engine.exchange.block_memory import BlockWriter
from engine.exchange.seal import Seal, SealedPlace
from engine.exchange.sending import BlockToSend
from engine.exchange.wire import (
    Ask,
    Block,
    Ended,
    ExchangeCodec,
    Found,
    FromSource,
    Leave,
    Still,
    Taken,
    ToSource,
)
from engine.link.curve import Socket
from prefix_cache.namespace import Namespace
from storage.copies import CopyEvent, Passed
from tests.doubles.waiting import wait_for

WAIT_S = 20.0
BLOCK_BYTES, WINDOW, GONE_S = 256, 3, 1.0
A = Namespace(b"a" * 16)
ASK = Ask(
    number=1,
    fingerprint=bytes(32),
    salt=b"1" * 16,
    spans=((0, bytes(16)),),
    token_ids=b"",
    first=0,
    window=WINDOW,
    flow="flow",
)


class Memory:
    """A block's bytes are its slot. A `BlockMemory` that is only read."""

    block_bytes = BLOCK_BYTES

    def mark(self) -> CopyEvent:
        return Passed()

    def reader(self) -> Memory:
        return self

    def writer(self) -> BlockWriter:
        raise AssertionError("nothing is written here")

    def read(self, slot: int) -> memoryview:
        return memoryview(bytes([slot]) * BLOCK_BYTES)


@dataclass
class Asking:
    """Another engine, by hand."""

    socket: Socket
    said: list[tuple[FromSource, bytes]] = field(default_factory=list)
    codec: ExchangeCodec = field(default_factory=ExchangeCodec)

    def say(self, message: ToSource) -> None:
        self.socket.send(self.codec.encode(message))

    def hear(self) -> list[FromSource]:
        """All that has come, with what comes within a moment."""
        while self.socket.poll(200):
            frame, *payload = self.socket.recv_multipart()
            self.said.append((self.codec.decode_from_source(frame), b"".join(payload)))
        return [message for message, _ in self.said]


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Answering]:
    where = str(tmp_path / "x.sock")
    with closing(Answering(where, Memory(), lambda: None, gone_s=GONE_S)) as opened:
        yield opened
    assert not Path(where).exists()


@pytest.fixture
def asking(answering: Answering) -> Iterator[Asking]:
    with zmq.Context[Socket]() as context, context.socket(zmq.DEALER) as socket:
        socket.set(zmq.LINGER, 0)
        socket.connect(f"ipc://{answering.address}")
        yield Asking(socket)


def place(position: int) -> SealedPlace:
    return SealedPlace(position, A, bytes(16), bytes(64))


def asked(answering: Answering) -> Asker:
    """Who has asked, once somebody has."""
    news: list[Asked | Gone] = []

    def has_come() -> bool:
        news.extend(answering.take())
        return bool(news)

    wait_for(has_come, WAIT_S, every_s=0.01)
    [one] = news
    assert isinstance(one, Asked)
    return one.asker


def send(answering: Answering, asker: Asker, count: int) -> None:
    answering.found(asker, count, {"label": 1})
    answering.send(asker, [BlockToSend(place(at), 10 + at) for at in range(count)])
    answering.end(asker, "", is_all=True)


def gone(answering: Answering) -> list[Asked | Gone]:
    news: list[Asked | Gone] = []

    def has_gone() -> bool:
        news.extend(answering.take())
        return bool(news)

    wait_for(has_gone, WAIT_S, every_s=0.01)
    return news


def test_no_more_is_sent_than_there_is_room_for(answering: Answering, asking: Asking) -> None:
    asking.say(ASK)
    asker = asked(answering)
    send(answering, asker, 5)
    found, *blocks = asking.hear()
    assert isinstance(found, Found)
    assert blocks == [Block(1, position) for position in range(WINDOW)]
    seal, into = Seal(ASK.fingerprint, ASK.salt, found.salt), bytearray(BLOCK_BYTES)
    for position in range(WINDOW):
        seal.open(place(position), asking.said[1 + position][1], memoryview(into))
        assert into == bytes([10 + position]) * BLOCK_BYTES
    assert not answering.take(), "what was sent may still be asked for"
    asking.said.clear()
    asking.say(Taken(1, 2))
    assert asking.hear() == [Still(1, 2), Block(1, 3), Block(1, 4)]
    asking.say(Taken(1, 5))
    assert asking.hear()[3:] == [Still(1, 5), Ended(1, "", is_all=True)]
    assert gone(answering) == [Gone(asker)]
    assert (answering.sent_blocks, answering.sent_bytes) == (5, 5 * BLOCK_BYTES)


def test_whoever_leaves_is_gone_at_once(answering: Answering, asking: Asking) -> None:
    asking.say(ASK)
    asker = asked(answering)
    send(answering, asker, 2)
    asking.say(Leave(1))
    assert gone(answering) == [Gone(asker)]


def test_whoever_says_nothing_more_is_gone_after_a_while(
    answering: Answering, asking: Asking
) -> None:
    """It was killed, or stands still: what it asked for is not held for ever."""
    asking.say(ASK)
    asker = asked(answering)
    send(answering, asker, 2)
    for _ in range(4):  # the control: one that says a word now and then stays
        time.sleep(GONE_S / 2)
        asking.say(Taken(1, 0))
    assert not answering.take()
    assert gone(answering) == [Gone(asker)]


def test_frames_that_say_nothing_are_passed_over(answering: Answering, asking: Asking) -> None:
    for frames in ([b""], [b"\xff" * 100], [b"one", b"two"], [asking.codec.encode(Taken(7, 1))]):
        asking.socket.send_multipart(frames)
    asking.say(ASK)
    asking.say(ASK)  # once more: it is one already
    asker = asked(answering)
    assert not answering.take()
    send(answering, asker, 1)
    assert asking.hear()[1:] == [Block(1, 0)]


def test_nobody_claims_to_have_taken_what_was_not_sent(
    answering: Answering, asking: Asking
) -> None:
    asking.say(ASK)
    send(answering, asked(answering), 5)
    asking.hear()
    asking.say(Taken(1, 1000))
    assert asking.hear()[4:6] == [Still(1, WINDOW), Block(1, 3)]


def test_over_tcp_a_key_is_needed() -> None:
    with pytest.raises(ValueError, match="a key is needed"):
        Answering("tcp://127.0.0.1:*", Memory(), lambda: None)


def test_two_do_not_answer_at_one_place(answering: Answering) -> None:
    with pytest.raises(OSError, match="another engine serves"):
        Answering(answering.address, Memory(), lambda: None)
