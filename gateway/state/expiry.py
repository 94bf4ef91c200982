"""The removal of stored responses when they have expired.

An expired one is not found in any case; this gives its bytes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from gateway.errors import Unavailable
from gateway.processes.periodic import repeated
from gateway.state.store import ResponseStore

LOOK_EVERY_S = 10.0


@asynccontextmanager
async def dropped_when_expired(
    store: ResponseStore, clock: Callable[[], float], every_s: float = LOOK_EVERY_S
) -> AsyncIterator[None]:
    """Look every `every_s` seconds while this is open. `clock`: seconds since the epoch."""

    async def look() -> None:
        with suppress(Unavailable):  # the next look finds them
            await store.drop_expired_responses(now=clock())
        await asyncio.sleep(every_s)

    async with repeated(look, "expired-responses"):
        yield
