"""Each form of an engine's address has its meaning, and other forms are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.link.address import Address, address, as_reached, exchange_at, is_tcp


def test_a_path_is_a_unix_socket_with_its_heartbeat_beside_it() -> None:
    at = address("/run/ratoon/engine.sock")
    assert at.messages == "ipc:///run/ratoon/engine.sock"
    assert at.heartbeat == "ipc:///run/ratoon/engine.sock.h"
    assert at.files == (Path("/run/ratoon/engine.sock"), Path("/run/ratoon/engine.sock.h"))
    assert not is_tcp("/run/ratoon/engine.sock")


@pytest.mark.parametrize(
    ("text", "messages", "heartbeat"),
    [
        ("tcp://gpu1.example:7300", "tcp://gpu1.example:7300", "tcp://gpu1.example:7301"),
        ("tcp://[::1]:7300", "tcp://[::1]:7300", "tcp://[::1]:7301"),
        ("tcp://0.0.0.0:65534", "tcp://0.0.0.0:65534", "tcp://0.0.0.0:65535"),
    ],
)
def test_over_tcp_the_heartbeat_has_the_port_after_it(
    text: str, messages: str, heartbeat: str
) -> None:
    assert address(text) == Address(messages, heartbeat, None)
    assert address(text).files == ()
    assert is_tcp(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("/", "is no path of a socket"),
        ("tcp://", "is not tcp://HOST:PORT"),
        ("tcp://gpu1", "is not tcp://HOST:PORT"),
        ("tcp://:7300", "is not tcp://HOST:PORT"),
        ("tcp://gpu1:0", "is not tcp://HOST:PORT"),
        ("tcp://me:secret@gpu1:7300", "is not tcp://HOST:PORT"),
        ("tcp://gpu1:7300/path", "is not tcp://HOST:PORT"),
        ("tcp://gpu1:65535", "the port is at most 65534"),
        ("tcp://gpu1:70000", "Port out of range"),
        ("tcp://[::1:7300", "Invalid IPv6"),
    ],
)
def test_what_is_no_address_is_said_in_a_line(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        address(text)


def test_an_exchange_is_told_as_it_is_reached() -> None:
    assert exchange_at("tcp://gpu1:7300") == "tcp://gpu1:7302"
    assert exchange_at("/run/engine.sock") == "/run/engine.sock.x"
    everywhere = ("tcp://0.0.0.0:7302", "tcp://[::]:7302")
    for told in everywhere:
        assert as_reached(told, "tcp://gpu1:7300") == "tcp://gpu1:7302"
    for told in ("tcp://10.0.0.7:7302", "/run/ratoon/engine.sock.x"):
        assert as_reached(told, "tcp://gpu1:7300") == told
    assert as_reached(everywhere[0], "/run/engine.sock") == everywhere[0]
