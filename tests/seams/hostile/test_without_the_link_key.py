"""Ports between machines accept only small frames from clients without the key.

ZMQ reads a whole frame before it checks whether the sender has the key.
"""

from __future__ import annotations

import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest
import zmq

from engine.exchange.serving.events import Asked, Gone
from engine.exchange.serving.server import BlockServer
from engine.exchange.wire import Ask, ExchangeCodec
from engine.link.codec import Codec
from engine.link.engine_end.socket_link import SocketLink
from engine.link.pieces import MAX_FRAME_BYTES, in_pieces
from engine.link.tcp.curve import LinkKey, Socket, connect_with
from engine.link.tcp.open_connections import allow_open_files, most_open
from tests.doubles.ports import two_free_ports
from tests.doubles.waiting import wait_for
from tests.engine.exchange.serving.test_server import Memory
from tests.engine.rigs.rig import generate

KEY = LinkKey(zmq.curve_keypair()[1])
WAIT_S = 20.0
STRANGERS = 2_000
STAYS_S = 0.5  # seconds, far longer than a rejection takes, as other tests show
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
LONG_COMMAND = 6  # the flag of a ZMTP command with a length of eight bytes


@contextmanager
def door(name: str) -> Iterator[int]:
    """Open a port of the kind `name`, and yield its number."""
    port = two_free_ports()
    at = f"tcp://127.0.0.1:{port}"
    with ExitStack() as opened:
        if name == "exchange":
            opened.enter_context(closing(BlockServer(at, Memory(), lambda: None, key=KEY)))
        else:
            opened.enter_context(closing(SocketLink(at, codec=Codec(), key=KEY)))
        yield port + (name == "heartbeat")


def is_shut_out(port: int, frame_bytes: int) -> bool:
    """Announce a frame of this size without the key. Return whether the server disconnects."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as stranger:
        stranger.sendall(GREETING)
        assert stranger.recv(64, socket.MSG_WAITALL)[:1] == b"\xff"
        stranger.sendall(struct.pack(">BQ", LONG_COMMAND, frame_bytes))
        stranger.settimeout(WAIT_S if frame_bytes > MAX_FRAME_BYTES else STAYS_S)
        with suppress(ConnectionResetError):
            try:
                return stranger.recv(1) == b""
            except TimeoutError:
                return False
    return True


@pytest.mark.parametrize("name", ["link", "heartbeat", "exchange"])
def test_a_stranger_who_begins_a_large_frame_is_shut_out(name: str) -> None:
    with door(name) as port:
        assert is_shut_out(port, MAX_FRAME_BYTES + 1)
        assert not is_shut_out(port, MAX_FRAME_BYTES), "the control: one that may be a handshake"


@pytest.fixture
def open_files() -> Iterator[None]:
    """Allow enough open files for both ends of all connections, which are in this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    allow_open_files()
    if most_open() < 3 * STRANGERS // 2:
        pytest.skip("the hard limit of open files (ulimit -Hn) is too low")
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("name", ["link", "exchange"])
def test_at_every_door_connections_are_counted(name: str) -> None:
    """The tests of `Strangers` show what a port does at too many connections."""
    before = threading.active_count()
    with door(name):
        counted = [one.name for one in threading.enumerate()].count("engine-strangers")
        assert counted == (2 if name == "link" else 1), "the heartbeat has a port as well"
    assert threading.active_count() == before


@contextmanager
def holder(at: str) -> Iterator[Callable[[bytes], object]]:
    """Yield a function that sends a message on a socket with the key."""
    context: zmq.Context[Socket] = zmq.Context()
    try:
        dealer = context.socket(zmq.DEALER)
        connect_with(dealer, KEY)
        dealer.connect(at)
        yield lambda message: dealer.send_multipart(in_pieces(message))
    finally:
        context.destroy(linger=0)


def test_a_holder_of_the_key_asks_for_a_prompt_of_any_length() -> None:
    at, codec = f"tcp://127.0.0.1:{two_free_ports()}", Codec()
    asked = generate("long", range(300_000))
    with closing(SocketLink(at, codec=codec, key=KEY)) as link, holder(at) as say:
        say(codec.encode(asked))
        [incoming] = link.receive(timeout_s=WAIT_S)
        assert incoming.message == asked


def test_two_thousand_who_never_show_a_key_hold_off_nobody_and_are_shut_out(
    open_files: None,
) -> None:
    """Half of the peers send nothing, and the others send half of the allowed bytes."""
    port = two_free_ports()
    at = f"tcp://127.0.0.1:{port}"
    asked = generate("honest", range(10))
    with (
        closing(SocketLink(at, codec=Codec(), key=KEY)) as link,
        ExitStack() as held,
        holder(at) as first,
    ):
        strangers = []
        for number in range(STRANGERS):
            strangers.append(held.enter_context(socket.create_connection(("127.0.0.1", port))))
            strangers[-1].sendall(GREETING[: len(GREETING) * (number % 2)])
        with holder(at) as second:
            for say in (first, second):
                say(Codec().encode(asked))
                [incoming] = link.receive(timeout_s=WAIT_S)
                assert incoming.message == asked
        for stranger in strangers:
            stranger.settimeout(WAIT_S)
            with suppress(ConnectionResetError):
                while stranger.recv(1 << 12):
                    pass  # ignores ZMQ's own greeting


def test_and_fetches_one_of_any_length() -> None:
    at = f"tcp://127.0.0.1:{two_free_ports()}"
    ask = Ask(
        number=1, fingerprint=b"", salt=bytes(16), token_ids=bytes(1 << 20), first=0, window=1
    )
    with (
        closing(BlockServer(at, Memory(), lambda: None, key=KEY)) as answering,
        holder(at) as say,
    ):
        say(ExchangeCodec().encode(ask))
        news: list[Asked | Gone] = []

        def has_come() -> bool:
            news.extend(answering.take())
            return bool(news)

        wait_for(has_come, WAIT_S)
        [one] = news
        assert isinstance(one, Asked)
        assert one.ask == ask
