"""What a worker is told by its parent, and the socket between the two.

A worker writes one byte to the socket when it begins to serve. It reads nothing but the socket's
end, which says that the parent is gone, however it died: a worker that nobody would restart or
stop must not live on.

Knows: one socket pair. Does not know: what a worker does (`main.py`) or when one is started
(`workers.py`).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import msgspec

SERVING = b"+"
EXIT_ORPHANED = 3


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is given beside the gateway's config."""

    parent_socket: int  # file descriptor
    metrics_dir: str  # shared by all workers


@asynccontextmanager
async def attached_to_parent(worker: WorkerConfig, serving: Awaitable[None]) -> AsyncIterator[None]:
    """Tell the parent once `serving` has returned; end this process when the parent is gone."""
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
    writer.write(SERVING)


async def _end_with_parent(reader: asyncio.StreamReader) -> None:
    await reader.read()
    os._exit(EXIT_ORPHANED)
