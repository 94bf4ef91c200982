"""The address of an engine: a Unix socket, or TCP between machines.

    /run/ratoon/engine.sock    the file's mode excludes other users
    tcp://gpu1.example:7300    both ends have the same key (`curve`); heartbeats use the next port

An engine that exchanges KV blocks with other engines listens at a second address, which it sends to
gateways.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

TCP = "tcp://"
MAX_PORT = 65_534  # one less than the maximum, because the next port is for heartbeats
EVERYWHERE = ("0.0.0.0", "[::]", "*")


@dataclass(frozen=True, slots=True)
class Address:
    """The two ZMQ endpoints of an engine: for messages, and for heartbeats."""

    messages: str
    heartbeat: str
    path: Path | None  # path of the Unix socket; None for TCP

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the sockets."""
        return () if self.path is None else (self.path, _beside(self.path))


def address(text: str) -> Address:
    """Parse `text`, a path or `tcp://host:port`, as an address. Raises a one-line ValueError."""
    if not text.startswith(TCP):
        path = Path(text)
        if not path.name:
            raise ValueError(f"{text!r} is no path of a socket")
        return Address(f"ipc://{path}", f"ipc://{_beside(path)}", path)
    host, port = host_and_port(text)
    return Address(f"{TCP}{host}:{port}", f"{TCP}{host}:{port + 1}", None)


def is_tcp(text: str) -> bool:
    """Return whether an address is a TCP address."""
    return text.startswith(TCP)


def exchange_at(engine: str) -> str:
    """Return the address of an engine's exchange: the engine's port plus 2, or path plus `.x`."""
    if not is_tcp(engine):
        return f"{engine}.x"
    host, port = host_and_port(engine)
    return f"{TCP}{host}:{port + 2}"


def as_reached(told: str, engine: str) -> str:
    """Return an engine's exchange address as its clients can reach it.

    `told` is the exchange address that the engine has sent.

    An engine that listens on all interfaces does not know its host's name. The host in `engine`,
    the address at which clients reach the engine, is then used.
    """
    if not is_tcp(told) or not is_tcp(engine):
        return told
    host, port = host_and_port(told)
    return f"{TCP}{host_and_port(engine)[0]}:{port}" if host in EVERYWHERE else told


def host_and_port(text: str) -> tuple[str, int]:
    """Split `tcp://host:port`. An IPv6 host is in brackets. Raises a one-line ValueError."""
    parts = urlsplit(text)
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from error
    if not host or not port or parts.path or parts.query or parts.username is not None:
        raise ValueError(f"{text!r} is not tcp://HOST:PORT")
    if port > MAX_PORT:
        raise ValueError(f"{text!r}: the port is at most {MAX_PORT}, the one after it is needed")
    return (f"[{host}]" if ":" in host else host), port


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.h")
