"""The removal of expired stored responses.

An expired one is not found in any case; this gives its bytes back.
"""

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
    """Remove expired responses every `every_s` seconds while open. `clock`: since the epoch."""

    async def look() -> None:
        with suppress(Unavailable):  # the next turn removes them
            await store.drop_expired_responses(now=clock())
        await asyncio.sleep(every_s)

    async with repeated(look, "expired-responses"):
        yield
