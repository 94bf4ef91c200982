"""The engine's end of the link: messages, bad frames, and the socket file."""

from __future__ import annotations

import os
import socket as posix_socket
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import pytest
import zmq

from engine.link.address import address
from engine.link.codec import Codec
from engine.link.engine_end.socket_link import (
    MAX_BYTES_PER_RECEIVE,
    MAX_MESSAGES_PER_RECEIVE,
    SocketLink,
)
from engine.link.event_messages import StepReply
from engine.link.heartbeat import HeartbeatListener
from engine.link.messages import Cancel, Hello, ToEngine
from engine.link.pieces import MAX_FRAME_BYTES, in_pieces
from tests.engine.rigs.rig import generate

CODEC = Codec()
TIMEOUT_S = 10.0


@pytest.fixture
def link(socket_path: str) -> Iterator[SocketLink]:
    link = SocketLink(socket_path, codec=Codec(max_frame_bytes=1 << 16))
    yield link
    link.close()


Gateway: TypeAlias = "zmq.Socket[bytes]"
Dial: TypeAlias = Callable[[], Gateway]


@pytest.fixture
def dial(socket_path: str) -> Iterator[Dial]:
    """Connect another gateway."""
    context: zmq.Context[Gateway] = zmq.Context()
    gateways: list[Gateway] = []

    def connect() -> Gateway:
        gateway = context.socket(zmq.DEALER)
        gateway.set(zmq.RCVTIMEO, int(TIMEOUT_S * 1000))
        gateway.set(zmq.SNDHWM, 0)
        gateway.connect(f"ipc://{socket_path}")
        gateways.append(gateway)
        return gateway

    yield connect
    for gateway in gateways:
        gateway.close(linger=0)
    context.term()


def look(socket_path: str) -> None:
    """Fail unless a heartbeat comes."""
    context: zmq.Context[Gateway] = zmq.Context()
    with closing(HeartbeatListener(context, socket_path)) as listener:
        listener.look(TIMEOUT_S)
        assert listener.missed == 0
    context.term()


def mode(path: str | Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_messages_go_both_ways(link: SocketLink, dial: Dial) -> None:
    gateways = [dial() for _ in range(2)]
    for number, gateway in enumerate(gateways):
        gateway.send(CODEC.encode(Cancel(str(number))))
        [incoming] = link.receive(timeout_s=TIMEOUT_S)
        assert incoming.message == Cancel(str(number))
        assert link.send(incoming.client, StepReply([]))
        assert CODEC.decode_from_engine(gateway.recv()) == StepReply([])
    assert link.receive(timeout_s=0) == []


def test_its_sockets_are_private(link: SocketLink, socket_path: str) -> None:
    assert mode(socket_path) == 0o600
    assert mode(address(socket_path).files[1]) == 0o600
    assert mode(Path(socket_path).parent) == 0o700


def test_the_umask_is_left_as_it_was(socket_path: str) -> None:
    before = os.umask(0o022)
    try:
        SocketLink(socket_path, codec=CODEC).close()
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


def test_undecodable_frames_are_counted_and_dropped(link: SocketLink, dial: Dial) -> None:
    gateway = dial()
    for frames in ([b""], [b"\xc1garbage"], [CODEC.encode(Hello()), b"more"], [b"", b""]):
        gateway.send_multipart(frames)
    gateway.send(CODEC.encode(Hello()))
    messages: list[ToEngine] = []
    while not messages:
        messages = [message for _, message in link.receive(timeout_s=TIMEOUT_S)]
    assert messages == [Hello()]
    assert link.dropped_frames == 4


def test_a_frame_over_the_bound_costs_its_sender_the_connection(
    link: SocketLink, dial: Dial
) -> None:
    rude, polite = dial(), dial()
    rude.send(bytes(MAX_FRAME_BYTES + 1))
    polite.send(CODEC.encode(Hello()))
    [incoming] = link.receive(timeout_s=TIMEOUT_S)
    assert incoming.message == Hello()
    assert link.send(incoming.client, StepReply([]))


def test_a_peer_that_is_gone_is_noticed(link: SocketLink, dial: Dial) -> None:
    gateway = dial()
    gateway.send(CODEC.encode(Hello()))
    [incoming] = link.receive(timeout_s=TIMEOUT_S)
    assert link.send(incoming.client, StepReply([]))
    gateway.close(linger=0)
    while link.send(incoming.client, StepReply([])):
        link.receive(timeout_s=0.01)
    assert not link.send(b"never seen", StepReply([]))


def test_a_flood_is_taken_in_portions(link: SocketLink, dial: Dial) -> None:
    gateway = dial()
    total = 3 * MAX_MESSAGES_PER_RECEIVE
    for number in range(total):
        gateway.send(CODEC.encode(Cancel(str(number))))
    received: list[str] = []
    while len(received) < total:
        portion = link.receive(timeout_s=TIMEOUT_S)
        assert len(portion) <= MAX_MESSAGES_PER_RECEIVE
        received += [m.request_id for _, m in portion if isinstance(m, Cancel)]
    assert received == [str(number) for number in range(total)]


def test_large_messages_are_taken_in_portions_too(link: SocketLink, dial: Dial) -> None:
    gateway = dial()
    large = [generate(str(number), range(6_000)) for number in range(200)]
    frames = [CODEC.encode(one) for one in large]
    assert len(frames) < MAX_MESSAGES_PER_RECEIVE
    assert sum(map(len, frames)) > 2 * MAX_BYTES_PER_RECEIVE
    for frame in frames:
        gateway.send_multipart(in_pieces(frame))
    received: list[ToEngine] = []
    while len(received) < len(large):
        portion = [incoming.message for incoming in link.receive(timeout_s=TIMEOUT_S)]
        assert portion, "a portion never came"
        assert len(portion) * len(frames[0]) < MAX_BYTES_PER_RECEIVE + 2 * len(frames[0])
        received += portion
    assert received == large


class TestTheSocketFile:
    def test_goes_when_the_link_closes(self, socket_path: str) -> None:
        link = SocketLink(socket_path, codec=CODEC)
        assert address(socket_path).files[1].exists()
        link.close()
        assert not Path(socket_path).exists()
        assert not address(socket_path).files[1].exists()

    def test_a_stale_one_is_replaced(self, socket_path: str, dial: Dial) -> None:
        Path(socket_path).parent.mkdir()
        for path in address(socket_path).files:
            with posix_socket.socket(posix_socket.AF_UNIX) as dead:
                dead.bind(str(path))
        link = SocketLink(socket_path, codec=CODEC)
        dial().send(CODEC.encode(Hello()))
        assert [incoming.message for incoming in link.receive(timeout_s=TIMEOUT_S)] == [Hello()]
        look(socket_path)
        link.close()

    def test_a_living_one_is_not_taken_over(self, link: SocketLink, socket_path: str) -> None:
        with pytest.raises(OSError, match="another engine"):
            SocketLink(socket_path, codec=CODEC)
        assert Path(socket_path).exists()

    def test_another_file_is_left_alone(self, socket_path: str) -> None:
        Path(socket_path).parent.mkdir()
        Path(socket_path).write_text("precious")
        with pytest.raises(FileExistsError):
            SocketLink(socket_path, codec=CODEC)
        assert Path(socket_path).read_text() == "precious"
