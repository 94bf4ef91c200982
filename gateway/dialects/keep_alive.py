"""The signs of life while a stream waits for its first event, so that nobody gives it up.

A long prompt may compute for longer than proxies and clients wait for a byte. Later events follow
one another closely, and are not timed: that would cost a task for each.

Knows: waiting. Does not know: what a sign looks like (`KeepAlive.frame`, which a dialect gives).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import NamedTuple

from gateway.generation.choice import Event


class KeepAlive(NamedTuple):
    """The frame that is sent every so many seconds until the first event has come."""

    frame: bytes
    every_s: float


async def with_pauses(
    events: AsyncGenerator[Event, None], pause_s: float
) -> AsyncGenerator[Event | None, None]:
    """Yield the `events`, at least one; None for each pause before the first."""
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
