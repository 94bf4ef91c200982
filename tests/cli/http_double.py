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
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
