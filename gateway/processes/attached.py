"""A worker's socket to its parent: heartbeats, and the end of a worker whose parent is gone."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import msgspec

SERVING = b"+"
HEARTBEAT_S = 1.0
EXIT_ORPHANED = 3


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The values that a worker is given in addition to the gateway's config."""

    parent_socket: int
    metrics_dir: str
    # path of the router process's socket; None: there is no router process
    router_socket: str | None = None


@asynccontextmanager
async def attached_to_parent(worker: WorkerConfig, serving: Awaitable[None]) -> AsyncIterator[None]:
    """Notify the parent once `serving` has returned. End this process when the parent is gone."""
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=worker.parent_socket))
    tasks = [
        asyncio.create_task(_report(serving, writer), name="worker-report"),
        asyncio.create_task(_end_with_parent(reader), name="worker-end-with-parent"),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        writer.close()


async def _report(serving: Awaitable[None], writer: asyncio.StreamWriter) -> None:
    await serving
    while True:
        # while an earlier byte is unsent, the parent does not read, and no byte is added
        if not writer.transport.get_write_buffer_size():
            writer.write(SERVING)
        await asyncio.sleep(HEARTBEAT_S)


async def _end_with_parent(reader: asyncio.StreamReader) -> None:
    await reader.read()
    os._exit(EXIT_ORPHANED)
