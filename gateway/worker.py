"""A worker's place among its siblings, and the line between it and its parent.

Over the line a worker says once that it serves. The line's end is all that it hears: its parent
is gone, however it went, and a worker that nobody would start again or end must not live on.

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


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is given beside the gateway's config."""

    line: int  # descriptor of its end of the line
    metrics_dir: str  # where all workers count


@asynccontextmanager
async def on_the_line(seat: Seat, serving: Awaitable[None]) -> AsyncIterator[None]:
    """Say so as soon as `serving`, end this process when the parent is gone."""
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=seat.line))
    tasks = [
        asyncio.create_task(_say(serving, writer), name="worker-says"),
        asyncio.create_task(_end_with_parent(reader), name="worker-hears"),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        writer.close()


async def _say(serving: Awaitable[None], writer: asyncio.StreamWriter) -> None:
    await serving
    writer.write(SERVING)


async def _end_with_parent(reader: asyncio.StreamReader) -> None:
    await reader.read()
    os._exit(EXIT_ORPHANED)
