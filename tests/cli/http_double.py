"""Runs an aiohttp application in a thread of its own, for commands that bring their own loop."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer

MakeApp = Callable[[], web.Application]


@contextmanager
def served(make_app: MakeApp) -> Iterator[str]:
    """The URL at which the application answers while the block runs."""
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
    """Close it. What a client that is gone has asked to connect is connected first.

    Between accepting a connection and making its transport asyncio may find its server closed, and
    then leaves the transport open (Python 3.11): some later test is blamed for it.
    """
    await asyncio.sleep(0.01)
    await server.close()
