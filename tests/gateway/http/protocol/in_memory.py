"""A connection in memory, before an application that answers 200 unless a test gives another.

The connection is made as uvicorn makes it, without network. The clock is the event loop's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from gateway.config import Bounds
from gateway.http.protocol.connection import BoundedConnection, connection_within
from tests.doubles.gateway.wire import Wire
from tests.gateway.http.protocol.exchange import DIALECTS, Application

TURNS = 50  # iterations of the event loop, more than an answer takes


@contextmanager
def connection_to(
    wire: Wire,
    state: ServerState,
    kind: type[BoundedConnection] | None = None,
    *,
    application: ASGIApp | None = None,
    keep_alive_s: int = 75,
    **settings: Any,
) -> Iterator[BoundedConnection]:
    """Return a connection that belongs to server state `state`; `settings` are attributes of its
    class.
    """
    config = uvicorn.Config(
        application or Application(),
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_keep_alive=keep_alive_s,
    )
    kind = kind or connection_within(Bounds(), DIALECTS)
    connection: BoundedConnection = type("InMemory", (kind,), settings)(config, state, {})
    connection.connection_made(wire)
    try:
        yield connection
    finally:
        connection.connection_lost(None)


def answers(wire: Wire) -> int:
    """Count the answers sent so far."""
    return b"".join(wire.sent).count(b"HTTP/1.1 200 OK\r\n")


async def turns() -> None:
    """Wait until the event loop has run everything that does not wait for time to pass."""
    for _ in range(TURNS):
        await asyncio.sleep(0)
