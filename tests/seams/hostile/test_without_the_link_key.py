"""At the doors between machines nothing of a stranger is taken into memory but small frames.

ZMQ takes a whole frame before it looks whether who sends it holds the key.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest
import zmq

from engine.exchange.answering import Answering, Asked, Gone
from engine.exchange.wire import Ask, ExchangeCodec
from engine.link.codec import Codec
from engine.link.curve import LinkKey, Socket, connect_with
from engine.link.pieces import MAX_FRAME_BYTES, in_pieces
from engine.link.socket_link import SocketLink
from engine.ranks.nodes.listener import open_listener
from engine.ranks.nodes.wire import MAX_REPORT_BYTES
from tests.doubles.ports import two_free_ports
from tests.doubles.waiting import wait_for
from tests.engine.exchange.test_answering import Memory
from tests.engine.rigs.rig import generate

KEY = LinkKey(zmq.curve_keypair()[1])
WAIT_S = 20.0
STAYS_S = 0.5  # far longer than it takes to be shut out, as the others show
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
LONG_COMMAND = 6  # of ZMTP: eight bytes of length follow


@contextmanager
def door(name: str) -> Iterator[int]:
    """The port of one that is open."""
    port = two_free_ports()
    at = f"tcp://127.0.0.1:{port}"
    with ExitStack() as opened:
        if name == "exchange":
            opened.enter_context(closing(Answering(at, Memory(), lambda: None, key=KEY)))
        elif name == "node":
            opened.enter_context(open_listener(at, KEY, 2, 5.0))
        else:
            opened.enter_context(closing(SocketLink(at, codec=Codec(), key=KEY)))
        yield port + (name == "heartbeat")


def is_shut_out(port: int, frame_bytes: int) -> bool:
    """Whether a stranger is, who says that so large a frame follows and has sent none of it."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as stranger:
        stranger.sendall(GREETING)
        assert stranger.recv(64, socket.MSG_WAITALL)[:1] == b"\xff"
        stranger.sendall(struct.pack(">BQ", LONG_COMMAND, frame_bytes))
        stranger.settimeout(WAIT_S if frame_bytes > MAX_REPORT_BYTES else STAYS_S)
        with suppress(ConnectionResetError):
            try:
                return stranger.recv(1) == b""
            except TimeoutError:
                return False
    return True


@pytest.mark.parametrize("name", ["link", "heartbeat", "exchange", "node"])
def test_a_stranger_who_begins_a_large_frame_is_shut_out(name: str) -> None:
    with door(name) as port:
        assert is_shut_out(port, MAX_REPORT_BYTES + 1)
        assert not is_shut_out(port, MAX_FRAME_BYTES), "the control: one that may be a handshake"


@contextmanager
def holder(at: str) -> Iterator[Callable[[bytes], object]]:
    """Sends as who holds the key."""
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


def test_and_fetches_one_of_any_length() -> None:
    at = f"tcp://127.0.0.1:{two_free_ports()}"
    ask = Ask(
        number=1, fingerprint=b"", salt=bytes(16), token_ids=bytes(1 << 20), first=0, window=1
    )
    with (
        closing(Answering(at, Memory(), lambda: None, key=KEY)) as answering,
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
