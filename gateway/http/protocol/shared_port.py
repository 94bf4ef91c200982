"""Sockets on a port that several processes share (SO_REUSEPORT).

Elsewhere: what is served on them (`server.py`).
"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any


def sockets_on(host: str, port: int) -> list[socket.socket]:
    """Bind a listening socket for each address of `host`; raise OSError."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with ExitStack() as opened:
        sockets = [opened.enter_context(_bound(*one)) for one in dict.fromkeys(found)]
        opened.pop_all()
    return sockets


@contextmanager
def reserved(addresses: Sequence[tuple[str, int]]) -> Iterator[None]:
    """Reserve the ports against other programs while no worker listens; raise OSError.

    A socket that is bound but does not listen gets no connections.
    """
    with ExitStack() as opened:
        for host, port in addresses:
            for one in sockets_on(host, port):
                opened.enter_context(one)
        yield


def _bound(family: int, kind: int, protocol: int, _: str, address: Any) -> socket.socket:
    one = socket.socket(family, kind, protocol)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
    except OSError:
        one.close()
        raise
    return one
