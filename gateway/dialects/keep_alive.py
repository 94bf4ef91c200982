"""Keep-alive frames while a stream waits for its first event, so that clients do not give up.

A long prompt may compute for longer than proxies and clients wait for a byte. Later events follow
one another closely, and are not timed: that would cost a task for each.

Knows: waiting. Does not know: what a sign looks like (`KeepAlive.frame`, which a dialect gives).
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import NamedTuple

from gateway.generation.choice import Event


class KeepAlive(NamedTuple):
    """The keep-alive frame, and the seconds between its sendings before the first event."""

    frame: bytes
    every_s: float


async def with_pauses(
    events: AsyncGenerator[Event, None], pause_s: float
) -> AsyncGenerator[Event | None, None]:
    """Yield the `events`, at least one, and None for every `pause_s` before the first."""
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
