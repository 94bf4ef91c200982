from __future__ import annotations

import socket

import pytest

from gateway.http.protocol.shared_port import reserved, sockets_on
from tests.doubles.ports import free_port


def test_two_listen_on_one_port_and_both_are_given_connections() -> None:
    port = free_port()
    (one,), (other,) = sockets_on("127.0.0.1", port), sockets_on("127.0.0.1", port)
    with one, other:
        for listener in (one, other):
            listener.listen(256)
            listener.setblocking(False)
        accepted = {one: 0, other: 0}
        for _ in range(64):
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass
        for listener in accepted:
            while True:
                try:
                    listener.accept()[0].close()
                except BlockingIOError:
                    break
                accepted[listener] += 1
    assert sum(accepted.values()) == 64
    assert all(accepted.values())


def test_a_reserved_port_takes_no_connection_from_those_who_listen() -> None:
    port = free_port()
    with reserved([("127.0.0.1", port)]):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        (listener,) = sockets_on("127.0.0.1", port)
        with listener:
            listener.listen()
            for _ in range(32):
                with socket.create_connection(("127.0.0.1", port), timeout=5):
                    listener.accept()[0].close()


def test_nobody_else_gets_a_reserved_port() -> None:
    port = free_port()
    with (
        reserved([("127.0.0.1", port)]),
        socket.socket() as stranger,
        pytest.raises(OSError, match="in use"),
    ):
        stranger.bind(("127.0.0.1", port))
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", port))


def test_a_taken_port_cannot_be_reserved() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"), reserved([taken.getsockname()]):
            raise AssertionError("reserved all the same")
