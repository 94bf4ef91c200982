"""The removal of expired stored responses, which frees their bytes.

A lookup never finds an expired response, even before its removal.
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
    """Remove expired responses every `every_s` seconds while this context is open.

    `clock` returns seconds since the epoch.
    """

    async def look() -> None:
        # if the state does not answer, the next turn removes these responses
        with suppress(Unavailable):
            await store.drop_expired_responses(now=clock())
        await asyncio.sleep(every_s)

    async with repeated(look, "expired-responses"):
        yield
