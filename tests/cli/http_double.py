"""An aiohttp application served in its own thread, for commands that run their own event loop."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer

MakeApp = Callable[[], web.Application]


@contextmanager
def served(make_app: MakeApp) -> Iterator[str]:
    """Serve the application while the block runs; yield its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> TestServer:
        server = TestServer(make_app())
        await server.start_server()
        return server

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield str(server.make_url("")).rstrip("/")
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _end(server: TestServer) -> None:
    """Close the server, but first accept any connection that a client has just opened.

    Otherwise asyncio (Python 3.11) may accept a connection, find the server closed, and leave the
    transport open. A later test would then fail because of that transport.
    """
    await asyncio.sleep(0.01)
    await server.close()
