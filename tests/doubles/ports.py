"""Ports that nobody listens on."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def two_free_ports() -> int:
    """The first of two neighbours that are free, where no connection gets its own port from.

    So nothing takes them before the server does that may come seconds later.
    """
    while True:
        first = random.randrange(20_000, 30_000)
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", first))
                other.bind(("127.0.0.1", first + 1))
            except OSError:
                continue
            return first
