"""The thread that sends blocks keeps to its windows, and drops askers that leave or are silent."""

from __future__ import annotations

import socket as posix_socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import zmq
from msgspec.structs import replace

from engine.exchange.block_memory import BlockWriter
from engine.exchange.seal import Seal, SealedPlace
from engine.exchange.serving.events import Asked, Asker, Gone
from engine.exchange.serving.listening import UNREAD_FRAMES
from engine.exchange.serving.sending import BlocksToSend
from engine.exchange.serving.server import BUSY, MOST_ASKS, BlockServer
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
    window_of,
)
from engine.link.tcp.curve import LinkKey, Socket
from prefix_cache.namespace import Namespace, NamespacePath
from storage.copies import CopyEvent, Passed
from tests.doubles.waiting import wait_for

WAIT_S = 20.0
WORDS = 5_000  # several times the messages that fit into a Unix socket and the buffers of both ends
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
    """A `BlockMemory` for reading, in which a block's bytes are its slot."""

    block_bytes = BLOCK_BYTES

    def units_of_state(self, state_slot: int) -> range:
        return range(state_slot, state_slot)

    def record_event(self) -> CopyEvent:
        return Passed()

    def reader(self) -> Memory:
        return self

    def writer(self) -> BlockWriter:
        raise AssertionError("nothing is written here")

    def read(self, slot: int) -> memoryview:
        return memoryview(bytes([slot]) * BLOCK_BYTES)


class LargeBlocks(Memory):
    """A memory of blocks that count as 2 MiB, so that few may be in flight, but are sent as 64
    KiB.
    """

    block_bytes = 2 << 20

    def read(self, slot: int) -> memoryview:
        return memoryview(bytes([slot]) * (64 << 10))


@dataclass
class Asking:
    """A socket of another engine that asks for blocks, driven by the test."""

    socket: Socket
    said: list[tuple[FromSource, bytes]] = field(default_factory=list)
    codec: ExchangeCodec = field(default_factory=ExchangeCodec)

    def say(self, message: ToSource) -> None:
        self.socket.send(self.codec.encode(message))

    def hear(self) -> list[FromSource]:
        """Return all messages so far, including those that arrive within 200 ms."""
        while self.socket.poll(200):
            frame, *payload = self.socket.recv_multipart()
            self.said.append((self.codec.decode_from_source(frame), b"".join(payload)))
        return [message for message, _ in self.said]


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[BlockServer]:
    where = str(tmp_path / "x.sock")
    with closing(BlockServer(where, Memory(), lambda: None, gone_s=GONE_S)) as opened:
        yield opened
    assert not Path(where).exists()


@pytest.fixture
def asking(answering: BlockServer) -> Iterator[Asking]:
    with zmq.Context[Socket]() as context, context.socket(zmq.DEALER) as socket:
        socket.set(zmq.LINGER, 0)
        socket.connect(f"ipc://{answering.address}")
        yield Asking(socket)


def place(position: int) -> SealedPlace:
    return SealedPlace(position, A, bytes(16), bytes(64))


def asked(answering: BlockServer) -> Asker:
    """Wait for an ask; return its asker."""
    news: list[Asked | Gone] = []

    def has_come() -> bool:
        news.extend(answering.take())
        return bool(news)

    wait_for(has_come, WAIT_S, every_s=0.01)
    [one] = news
    assert isinstance(one, Asked)
    return one.asker


def send(answering: BlockServer, asker: Asker, count: int) -> None:
    answering.found(asker, count, {"label": 1})
    slots = np.arange(10, 10 + count, dtype="<i4").tobytes()
    path, keys, tokens = NamespacePath.single(A), bytes(16 * count), bytes(64 * count)
    answering.send(asker, BlocksToSend(0, path, keys, tokens, slots))
    answering.end(asker, "", is_all=True)


def carried_out(answering: BlockServer) -> None:
    """Wait until the sending thread has carried out earlier orders."""
    is_done = threading.Event()
    answering._order(is_done.set)
    assert is_done.wait(WAIT_S)


def gone(answering: BlockServer) -> list[Asked | Gone]:
    news: list[Asked | Gone] = []

    def has_gone() -> bool:
        news.extend(answering.take())
        return bool(news)

    wait_for(has_gone, WAIT_S, every_s=0.01)
    return news


def test_no_more_is_sent_than_there_is_room_for(answering: BlockServer, asking: Asking) -> None:
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


def test_whoever_leaves_is_gone_at_once(answering: BlockServer, asking: Asking) -> None:
    asking.say(ASK)
    asker = asked(answering)
    send(answering, asker, 2)
    asking.say(Leave(1))
    assert gone(answering) == [Gone(asker)]


def test_whoever_says_nothing_more_is_gone_after_a_while(
    answering: BlockServer, asking: Asking
) -> None:
    """Release the blocks of an asking engine that was killed or hangs."""
    asking.say(ASK)
    asker = asked(answering)
    send(answering, asker, 2)
    # positive control: an asker that sends a message from time to time is not dropped
    for _ in range(4):
        time.sleep(GONE_S / 2)
        asking.say(Taken(1, 0))
    assert not answering.take()
    assert gone(answering) == [Gone(asker)]


def test_frames_that_say_nothing_are_passed_over(answering: BlockServer, asking: Asking) -> None:
    for frames in ([b""], [b"\xff" * 100], [b"one", b"two"], [asking.codec.encode(Taken(7, 1))]):
        asking.socket.send_multipart(frames)
    asking.say(ASK)
    asking.say(ASK)  # the server counts a repeated ask once
    asker = asked(answering)
    assert not answering.take()
    send(answering, asker, 1)
    assert asking.hear()[1:] == [Block(1, 0)]


def test_nobody_claims_to_have_taken_what_was_not_sent(
    answering: BlockServer, asking: Asking
) -> None:
    asking.say(ASK)
    send(answering, asked(answering), 5)
    wait_for(lambda: len(asking.hear()) >= 4, WAIT_S)
    asking.say(Taken(1, 1000))
    wait_for(lambda: len(asking.hear()) >= 6, WAIT_S)
    assert asking.hear()[4:6] == [Still(1, WINDOW), Block(1, 3)]


@contextmanager
def one_that_reads_nothing(tmp_path: Path) -> Iterator[tuple[BlockServer, Asking]]:
    """Return an engine that sends large blocks, and an asker that reads nothing and buffers one
    message.
    """
    with (
        closing(BlockServer(str(tmp_path / "x.sock"), LargeBlocks(), lambda: None)) as answering,
        zmq.Context[Socket]() as context,
        context.socket(zmq.DEALER) as socket,
    ):
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RCVHWM, 1)
        socket.connect(f"ipc://{answering.address}")
        asking = Asking(socket)
        yield answering, asking


def test_who_reads_nothing_is_not_sent_more_and_more(tmp_path: Path) -> None:
    """Bound the unread blocks, whatever window an engine asks for, also if the engine leaves and
    asks again.
    """
    window = window_of(LargeBlocks.block_bytes)
    # number of blocks that fit into the kernel's socket buffer
    most = 2 * window + UNREAD_FRAMES + 16
    with one_that_reads_nothing(tmp_path) as (answering, asking):
        asks = most // window + 3
        for number in range(1, asks + 1):
            asking.say(replace(ASK, number=number, window=1 << 40))
            send(answering, asked(answering), 2 * window)
            if number <= 2:  # these blocks fit into the kernel's buffer
                wait_for(lambda n=number: answering.sent_blocks >= n * window, WAIT_S)  # type: ignore[misc]
            carried_out(answering)
            asking.say(Leave(number))
            gone(answering)
            assert answering.sent_blocks <= min(number * window, most)
        assert most < asks * window
        asking.hear()  # positive control: an asker that reads gets what it asked for
        asking.say(replace(ASK, number=100, window=5))
        send(answering, asked(answering), 5)
        last = Block(100, 4)
        wait_for(lambda: last in asking.hear(), WAIT_S)


def test_no_more_asks_are_held_than_so_many_while_the_owner_stands(tmp_path: Path) -> None:
    where = str(tmp_path / "x.sock")
    with (
        closing(BlockServer(where, Memory(), lambda: None, gone_s=60.0)) as answering,
        zmq.Context[Socket]() as context,
        context.socket(zmq.DEALER) as socket,
    ):
        socket.set(zmq.LINGER, 0)
        socket.connect(f"ipc://{where}")
        asking = Asking(socket)
        for number in range(MOST_ASKS + 2):
            asking.say(replace(ASK, number=number))
        wait_for(lambda: len(asking.hear()) >= 2, WAIT_S)
        assert asking.hear() == [Ended(MOST_ASKS + at, BUSY, is_all=False) for at in range(2)]
        # an ask that leaves makes room only after the owner has read the news
        for number in range(3 * MOST_ASKS):
            asking.say(Leave(number % MOST_ASKS))
            asking.say(replace(ASK, number=1000 + number))
        last = Ended(1000 + 3 * MOST_ASKS - 1, BUSY, is_all=False)
        wait_for(lambda: last in asking.hear(), WAIT_S)
        assert len(answering.take()) <= 3 * MOST_ASKS
        asking.said.clear()
        asking.say(Leave(1000))
        asking.say(replace(ASK, number=9999))  # positive control: the owner has read the news
        assert not asking.hear()
        assert any(isinstance(one, Asked) for one in answering.take())


def test_over_tcp_a_key_is_needed() -> None:
    with pytest.raises(ValueError, match="a key is needed"):
        BlockServer("tcp://127.0.0.1:*", Memory(), lambda: None)


def test_a_port_that_is_taken_is_named() -> None:
    with posix_socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        at = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"exchange {at}: Address already in use"):
            BlockServer(at, Memory(), lambda: None, key=LinkKey(zmq.curve_keypair()[1]))


def test_two_do_not_answer_at_one_place(answering: BlockServer) -> None:
    with pytest.raises(OSError, match="another engine serves"):
        BlockServer(answering.address, Memory(), lambda: None)


def test_who_reads_nothing_and_goes_on_talking_is_gone_when_its_time_is_over(
    tmp_path: Path,
) -> None:
    """Release leases even though the end message cannot be delivered."""
    with one_that_reads_nothing(tmp_path) as (answering, asking):
        asking.say(ASK)
        asker = asked(answering)
        send(answering, asker, 2)
        for _ in range(WORDS):  # each message gets an answer until the buffer is full
            asking.say(Taken(1, 0))
        carried_out(answering)
        assert not answering.take(), "the control: it is heard, and may yet take them"
        answering.end(asker, "it takes too long", is_all=False)
        news: list[Asked | Gone] = []

        def has_gone() -> bool:
            asking.say(Taken(1, 0))
            news.extend(answering.take())
            return bool(news)

        wait_for(has_gone, WAIT_S, every_s=0.1)
        assert news == [Gone(asker)]
