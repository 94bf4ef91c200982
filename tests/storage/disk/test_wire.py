"""Messages between engine and disk process arrive as sent. Noise and large ones are refused."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage.disk.wire import (
    COMMANDS,
    ERASE_SLOTS,
    MAX_MESSAGE_BYTES,
    REPLIES,
    Channel,
    DiskEnded,
    DiskMessage,
    DiskOutcome,
    Erase,
    FileStats,
    Forget,
    Opened,
    Read,
    ScannedSlots,
    Segment,
    WireBroken,
    Write,
    decode,
)
from tests.storage.scene import record

SENT = [
    Write(1, 2, Segment.HOST, 3, record(4)),
    Read(1, 2, 3, record(4)),
    Erase(list(range(2**32 - ERASE_SLOTS, 2**32))),
    Forget("flow"),
]
ANSWERED = [
    Opened(set_aside=True, given_up=False, num_slots=5),
    DiskEnded(5, DiskOutcome.LOST),
    ScannedSlots([(n, record(n)) for n in range(200)], 200),
    FileStats(1, 2, 3, 4, disk_full=True),
]


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        yield Channel(one), Channel(other)


def receive(channel: Channel) -> memoryview:
    content = channel.receive()
    assert content is not None
    return content


def test_every_message_arrives_as_it_was_sent(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    for command in SENT:
        assert here.send(here.encode(command))
        assert decode(COMMANDS, receive(there)) == command
    for reply in ANSWERED:
        assert there.send(there.encode(reply))
        assert decode(REPLIES, receive(here)) == reply


def test_nothing_waits_that_was_told_not_to(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    assert there.receive(socket.MSG_DONTWAIT) is None
    content = here.encode(SENT[0])
    sent = 0
    while here.send(content, socket.MSG_DONTWAIT):
        sent += 1
    assert sent > 10
    for _ in range(sent):
        assert decode(COMMANDS, receive(there)) == SENT[0]
    assert there.receive(socket.MSG_DONTWAIT) is None


def test_the_end_of_the_other_side_is_told_after_what_it_said(
    ends: tuple[Channel, Channel],
) -> None:
    here, there = ends
    here.send(here.encode(SENT[3]))
    here.socket.close()
    assert decode(COMMANDS, receive(there)) == SENT[3]
    with pytest.raises(WireBroken, match="gone"):
        there.receive()
    with pytest.raises(WireBroken, match="gone"):
        there.send(b"x")


def test_messages_are_bounded_at_both_ends(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    with pytest.raises(WireBroken, match="Forget of"):
        here.encode(Forget("x" * MAX_MESSAGE_BYTES))
    here.send(b"x" * (MAX_MESSAGE_BYTES + 1))
    with pytest.raises(WireBroken, match="too large"):
        there.receive()


@given(st.binary(max_size=400))
@example(msgspec.msgpack.encode(["Forget", "x"])[:-1] + b"\xff")  # not UTF-8
@example(b"\xa1\xff")
@example(b"\x91" * 5000)
def test_noise_does_not_decode(noise: bytes) -> None:
    for read in (partial(decode, COMMANDS), partial(decode, REPLIES)):
        try:
            message: DiskMessage = read(memoryview(noise))
        except WireBroken:
            continue
        assert isinstance(message, DiskMessage)


def test_a_message_of_one_side_is_none_of_the_other() -> None:
    content = memoryview(msgspec.msgpack.encode(SENT[0]))
    with pytest.raises(WireBroken):
        decode(REPLIES, content)
    assert decode(COMMANDS, content) == SENT[0]
