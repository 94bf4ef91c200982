"""The engine's TCP port accepts only a limited number of unauthenticated connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest
import zmq

from engine.link.engine_end.binding import bind
from engine.link.tcp.curve import LinkKey
from engine.link.tcp.strangers import Strangers
from tests.doubles.ports import two_free_ports
from tests.doubles.waiting import wait_for

MOST = 5
WAIT_S = 20.0
NEVER_S = 0.3  # loopback takes far less, as the positive control shows


@contextmanager
def port_for(most: int) -> Iterator[int]:
    """Listen on a port that allows `most` unauthenticated connections."""
    port, context = two_free_ports(), zmq.Context[zmq.Socket[bytes]]()
    try:
        router = context.socket(zmq.ROUTER)
        with closing(Strangers(router, "here", most=most)):
            bind(router, f"tcp://127.0.0.1:{port}", LinkKey(zmq.curve_keypair()[1]))
            yield port
    finally:
        context.destroy(linger=0)


def connect(port: int, within_s: float = WAIT_S) -> socket.socket:
    """Connect, but send no message and so do not authenticate."""
    return socket.create_connection(("127.0.0.1", port), timeout=within_s)


def greets(stranger: socket.socket) -> bool:
    """Return whether ZMQ has accepted the connection."""
    return stranger.recv(1) == b"\xff"


def test_no_more_connections_are_taken_than_may_be_until_one_has_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with port_for(MOST) as port, ExitStack() as opened:
        held = [opened.enter_context(connect(port)) for _ in range(MOST)]
        assert all(map(greets, held)), "the control: as many as may be"
        wait_for(lambda: "here: as many connections" in caplog.text, WAIT_S)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                connect(port, NEVER_S)
        held[0].close()
        held[0] = opened.enter_context(connect(port))
        assert greets(held[0])
    assert len(caplog.records) == 1


def test_a_port_is_free_again_once_it_is_closed() -> None:
    with port_for(1) as port, connect(port) as stranger:
        assert greets(stranger)
    with socket.socket() as next_one:
        next_one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        next_one.bind(("127.0.0.1", port))
        next_one.listen()
