"""A client that reads slowly gets its whole answer; a client that hardly reads is cut off.

The tests use real sockets, since the kernel buffers part of an answer.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from gateway.config import Bounds
from gateway.http.protocol.connection import connection_within
from gateway.http.protocol.read_watch import LEAST_RATE
from tests.doubles.waiting import until
from tests.gateway.http.protocol.exchange import DIALECTS

SIZE = 24 << 20  # bytes, more than the kernel buffers
STALLED_S = 0.2
HASTY = Bounds(stalled_write_s=STALLED_S)


async def large(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with a body of SIZE bytes, as an ASGI application."""
    fields = [(b"content-length", str(SIZE).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": bytes(SIZE)})


@asynccontextmanager
async def answering(more: bytes) -> AsyncIterator[tuple[socket.socket, ServerState]]:
    """Yield a client's socket that asked for a large answer, and the server's open connections."""
    config = uvicorn.Config(large, log_config=None, access_log=False, lifespan="off")
    kind = connection_within(HASTY, DIALECTS)
    loop, state = asyncio.get_running_loop(), ServerState()
    server = await loop.create_server(lambda: kind(config, state, {}), "127.0.0.1", 0)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        client.setblocking(False)
        await loop.sock_connect(client, server.sockets[0].getsockname())
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: x\r\n" + more + b"\r\n")
        yield client, state
    server.close()


async def read(client: socket.socket, at_once: int, every_s: float) -> int:
    """Read the answer until it is complete or the connection is lost."""
    loop, got = asyncio.get_running_loop(), 0
    while got < SIZE:
        try:
            piece = await loop.sock_recv(client, at_once)
        except ConnectionResetError:
            break
        if not piece:
            break
        got += len(piece)
        await asyncio.sleep(every_s)
    return got


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run the test under the same event loop as the server."""
    uvloop.run(test())  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [b"", b"connection: close\r\n"])
def test_a_slow_steady_reader_has_all(fields: bytes) -> None:
    async def test() -> None:
        async with answering(fields) as (client, _):
            assert await read(client, 256 << 10, 0.02) >= SIZE

    run(test)


@pytest.mark.parametrize("every_s", [STALLED_S, 30 * STALLED_S])
@pytest.mark.parametrize("fields", [b"", b"connection: close\r\n"])
def test_who_hardly_reads_or_does_not_is_cut_off(fields: bytes, every_s: float) -> None:
    assert LEAST_RATE * STALLED_S > 1, "what it reads meanwhile"

    async def test() -> None:
        async with answering(fields) as (client, server):
            reading = asyncio.ensure_future(read(client, 1, every_s))
            await until(lambda: bool(server.connections), 20)
            await until(lambda: not server.connections, 20)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            assert await read(client, 1 << 20, 0) < SIZE, "the rest is dropped"

    run(test)
