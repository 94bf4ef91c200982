"""The serving of several applications on their addresses, in one event loop, until a signal.

Several processes may listen on one port. Every worker has a separate socket on it (SO_REUSEPORT),
and the kernel distributes connections among them by their addresses. With one inherited socket, the
first worker to wake up would accept a whole burst of connections. This worker would keep the
connections, because streams live long.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import Server as UvicornServer

from gateway.config import Bounds
from gateway.http.cors import Cors
from gateway.http.error_dialect import Dialects
from gateway.http.protocol.connection import connection_within
from gateway.http.protocol.counted_connection import uncounted
from gateway.http.protocol.shared_port import sockets_on

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# seconds for which an idle connection is kept, longer than balancers keep it, so that balancers
# close first
_KEEP_ALIVE_S = 75
# seconds to send errors to requests that are cut off; clients that do not read would take longer
_CUT_OFF_S = 2.0


@dataclass(frozen=True, slots=True)
class Bind:
    """An application, the dialects of its paths, and the address where it is served."""

    app: ASGIApp
    dialects: Dialects
    host: str
    port: int  # 0: any free port
    max_connections: int = sys.maxsize
    # called with the code of each error that a connection sends
    refused: Callable[[str], None] = uncounted
    cors: Cors | None = None  # None: no page of another origin may read an answer


class Server(UvicornServer):
    """uvicorn's server without signal handlers, because one process may run several servers."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Install no signal handlers, since `serve` installs handlers once for all servers."""
        yield

    def __init__(self, config: Config, *, shares_port: bool) -> None:
        super().__init__(config)
        self._shares_port = shares_port
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. If other processes share the port, this process listens on a separate socket."""
        if self._shares_port:
            sockets = sockets_on(self.config.host, self.config.port)
        await super().startup(sockets)
        self.listens.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain and stop. Requests that are cut off are first sent an error and counted."""
        await super().shutdown(sockets)
        cut_off = set(self.server_state.tasks)
        for task in cut_off:
            if not task.cancelling():  # uvicorn itself cancels no task after a second signal
                task.cancel()
        if cut_off:
            await asyncio.wait(cut_off, timeout=_CUT_OFF_S)

    @property
    def port(self) -> int:
        """The port that the server listens on, once it has started."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port


def make_server(bind: Bind, bounds: Bounds, grace_s: float, *, shares_port: bool = False) -> Server:
    """Make a server for `bind` that has not started yet."""
    return Server(
        Config(
            bind.app,
            host=bind.host,
            port=bind.port,
            http=connection_within(
                bounds, bind.dialects, bind.max_connections, bind.refused, bind.cors
            ),
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
    """Run the servers until a signal in `ends` or the end of a server. Then drain all.

    Running requests may continue for the servers' grace period. New connections are refused.
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
    """Wait until each server has begun to listen."""
    for server in servers:
        await server.listens.wait()


def _end(servers: Sequence[Server]) -> None:
    if all(server.should_exit for server in servers):
        for server in servers:
            server.force_exit = True
    _drain(servers)


def _drain(servers: Sequence[Server]) -> None:
    for server in servers:
        server.should_exit = True
