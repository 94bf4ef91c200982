"""The recorded flushes for engines that connect: engines first do those that they missed.

Engines are connected to before the state is open, so a reader waits until it has been found. While
the state does not answer it waits as well: an engine that may have blocks which were flushed is not
used. No flush can be recorded meanwhile, and a minute later no key is valid either.

Knows: the records. Does not know: which engine has done which flush; each knows that of itself.
"""

import asyncio
import time
from collections.abc import Callable

from gateway.errors import Unavailable
from gateway.state.store import FlushLog

RETRY_S = 0.5


class FlushReader:
    """A reader of all recorded flushes. For one event loop."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Take `clock`, in seconds since the epoch."""
        self._clock = clock
        self._log: FlushLog | None = None
        self._is_found = asyncio.Event()

    def found(self, log: FlushLog) -> None:
        """Take the log of flushes: the state is open."""
        self._log = log
        self._is_found.set()

    async def read(self) -> dict[str, str | None]:
        """Map flush ids to tenants, None for all tenants; wait until the state answers."""
        while True:
            await self._is_found.wait()
            try:
                return {} if self._log is None else await recorded(self._log, self._clock())
            except Unavailable:
                await asyncio.sleep(RETRY_S)


async def recorded(log: FlushLog, now: float) -> dict[str, str | None]:
    """Map the ids of flushes that are due to tenants, None for all tenants; raise Unavailable."""
    return {one.id_at(now): one.tenant_id for one in await log.flushes()}
