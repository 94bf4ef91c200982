"""Free ports."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """Return a port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def two_free_ports() -> int:
    """Return the first of two free neighbouring ports outside the range of automatic ports.

    So no connection is given these ports before a server that may start seconds later.
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
