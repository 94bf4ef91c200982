"""The encryption of the link over TCP: ZMQ's CURVE, with one key pair known to both ends.

Engine and gateways hold the same secret key, a file that the operator copies. A gateway connects
only to an engine that has the key, and the engine answers only peers that have it.

Elsewhere: the creation of the key file (`cli/serving/link_key.py`).
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import zmq
from zmq.auth.thread import ThreadAuthenticator

Socket: TypeAlias = "zmq.Socket[bytes]"

HANDSHAKES = 3  # successive failures that indicate a wrong key; a dying engine causes fewer
_DOMAIN = "ratoon"
# Milliseconds between pings; milliseconds of silence until a peer counts as gone.
_PING_MS, _GONE_MS = 2_000, 10_000
# Milliseconds until a peer that has not proved to have the key is disconnected.
HANDSHAKE_MS = _GONE_MS


class BadLinkKey(Exception):
    """An error: the key file is missing, has no key, or can be written by other users."""


@dataclass(frozen=True, slots=True)
class LinkKey:
    """The key pair that both ends use, Z85-encoded."""

    secret: bytes = field(repr=False)

    @property
    def public(self) -> bytes:
        """The public key. Each end recognises the other end by it."""
        return zmq.curve_public(self.secret)


def read_link_key(path: Path) -> LinkKey:
    """Read the link's key from a file. Raises BadLinkKey."""
    try:
        mode, secret = path.stat().st_mode, path.read_bytes().strip()
    except OSError as error:
        raise BadLinkKey(f"{path} cannot be read: {error.strerror}") from error
    # Only writing is checked: mounted secrets are often readable by other users.
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BadLinkKey(f"{path} can be written by others: chmod 600")
    try:
        key = LinkKey(secret)
        _ = key.public
    except (ValueError, zmq.ZMQError) as error:
        raise BadLinkKey(f"{path} holds no key") from error
    return key


def serve_with(socket: Socket, key: LinkKey) -> None:
    """Answer only peers that have `key`, while `only_holders` runs. Call before binding."""
    socket.set(zmq.CURVE_SERVER, 1)
    socket.set(zmq.CURVE_SECRETKEY, key.secret)
    socket.set_string(zmq.ZAP_DOMAIN, _DOMAIN)
    socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    _ping(socket)


def connect_with(socket: Socket, key: LinkKey) -> None:
    """Connect only to peers that have `key`. Call before connecting."""
    socket.set(zmq.CURVE_SECRETKEY, key.secret)
    socket.set(zmq.CURVE_PUBLICKEY, key.public)
    socket.set(zmq.CURVE_SERVERKEY, key.public)
    _ping(socket)


def _ping(socket: Socket) -> None:
    socket.set(zmq.HEARTBEAT_IVL, _PING_MS)
    socket.set(zmq.HEARTBEAT_TIMEOUT, _GONE_MS)


class FailedHandshakes:
    """A count of successive failed handshakes with one engine."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._failed = 0

    def count(self, *, failed: bool) -> bool:
        """Record a handshake. Return True once the failures indicate a wrong key."""
        self._failed = self._failed + 1 if failed else 0
        return self._failed == HANDSHAKES

    @property
    def error(self) -> str | None:
        """The reason why handshakes fail, or None."""
        if self._failed < HANDSHAKES:
            return None
        return (
            f"{self._engine}: the handshake fails: the engine's link key is another one than that "
            "of --link-key-file, or what listens there is no engine"
        )


@dataclass(frozen=True, slots=True)
class _Holders:
    public: bytes

    def callback(self, domain: str, key: bytes) -> bool:
        """Check a handshake's key, for `ThreadAuthenticator.configure_curve_callback`."""
        return domain == _DOMAIN and key == self.public


@contextmanager
def only_holders(context: zmq.Context[Socket], key: LinkKey) -> Iterator[None]:
    """Admit to this context's sockets only peers that have `key`. Enter before binding."""
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    try:
        authenticator.configure_curve_callback(
            domain=_DOMAIN, credentials_provider=_Holders(key.public)
        )
        yield
    finally:
        authenticator.stop()
