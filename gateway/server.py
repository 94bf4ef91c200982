"""Serves applications on their addresses, in one event loop, until a signal.

Knows: uvicorn, signals, draining. Does not know: what the applications do.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from gateway.config import Bounds
from gateway.connection import connection_within
from gateway.shared_port import sockets_on

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_KEEP_ALIVE_S = 75  # longer than load balancers keep idle connections, so that they close first
_CUT_OFF_S = 2.0  # for telling requests that they are cut off; only a stuck client takes as long


@dataclass(frozen=True, slots=True)
class Bind:
    """An application and where it is served."""

    app: ASGIApp
    host: str
    port: int  # 0: any free one


class Server(uvicorn.Server):
    """uvicorn's server without signal handlers, because one process may run several."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Install none; `serve` does it once for all servers."""
        yield

    def __init__(self, config: uvicorn.Config, *, shares_port: bool) -> None:
        super().__init__(config)
        self._shares_port = shares_port
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, on own sockets if other processes share the port."""
        if self._shares_port:
            sockets = sockets_on(self.config.host, self.config.port)
        await super().startup(sockets)
        self.listens.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain and stop; requests that are cut off get an error, and are counted, before that."""
        await super().shutdown(sockets)
        cut_off = set(self.server_state.tasks)
        for task in cut_off:
            if not task.cancelling():  # after a second signal uvicorn does not cancel them
                task.cancel()
        if cut_off:
            await asyncio.wait(cut_off, timeout=_CUT_OFF_S)

    @property
    def port(self) -> int:
        """The port it listens on, once it has started."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port


def make_server(bind: Bind, bounds: Bounds, grace_s: float, *, shares_port: bool = False) -> Server:
    """A server for `bind`, not yet started."""
    return Server(
        uvicorn.Config(
            bind.app,
            host=bind.host,
            port=bind.port,
            http=connection_within(bounds),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(grace_s)),
        ),
        shares_port=shares_port,
    )


async def serve(servers: Sequence[Server], ends: Sequence[signal.Signals] = _SIGNALS) -> None:
    """Run until one of the signals `ends`, or until a server ends; then drain all.

    Running requests may go on for the servers' grace period; new connections are refused.
    """
    loop = asyncio.get_running_loop()
    for name in ends:
        loop.add_signal_handler(name, _end, servers)
    try:
        async with asyncio.TaskGroup() as group:
            for server in servers:
                group.create_task(server.serve()).add_done_callback(lambda _: _drain(servers))
    finally:
        for name in ends:
            loop.remove_signal_handler(name)


async def all_listen(servers: Sequence[Server]) -> None:
    """Return once each of them has begun to listen."""
    for server in servers:
        await server.listens.wait()


def _end(servers: Sequence[Server]) -> None:
    """A first signal drains; a second one ends at once."""
    if all(server.should_exit for server in servers):
        for server in servers:
            server.force_exit = True
    _drain(servers)


def _drain(servers: Sequence[Server]) -> None:
    for server in servers:
        server.should_exit = True
