"""The keep-alive frames that a stream sends before its first event.

While a long prompt is computed, proxies and clients may give up on a silent connection. Only the
wait for the first event has a timeout. Later events follow closely, and a timeout for each event
would cost a task.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import NamedTuple

from gateway.generation.choice import Event


class KeepAlive(NamedTuple):
    """A keep-alive frame, and the seconds between its repetitions before the first event."""

    frame: bytes
    every_s: float


async def with_pauses(
    events: AsyncGenerator[Event, None], pause_s: float
) -> AsyncGenerator[Event | None, None]:
    """Yield the `events`. Before the first event, yield None every `pause_s` seconds."""
    first = asyncio.ensure_future(anext(events))
    try:
        while not first.done():
            await asyncio.wait((first,), timeout=pause_s)
            if not first.done():
                yield None
        yield first.result()
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    async for event in events:
        yield event
