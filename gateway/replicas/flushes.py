"""The recorded flushes for engines that connect. Engines first do the flushes that they missed.

Engines are connected before the state is open, so a reader waits until the state has been found.
The reader also waits while the state does not answer. An engine that may still have blocks of a
missed flush must not be used. While the state does not answer, no flush can be recorded, and a
minute later no key is valid.

A flush that engines repeat is due `again_s` seconds after this process first saw the flush, by a
monotonic clock. The repetition is never earlier than the flush's record says. The repetition is
later if this process did not run or could not read. Each engine knows which flushes it has done.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from gateway.errors import Unavailable
from gateway.state.records import CacheFlush
from gateway.state.store import FlushLog

RETRY_S = 0.5


class FlushReader:
    """A reader of all recorded flushes. Used in one event loop."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._log: FlushLog | None = None
        self._is_found = asyncio.Event()
        # times at which the flushes that engines repeat were first seen
        self._seen: dict[str, float] = {}

    def found(self, log: FlushLog) -> None:
        """Begin to read recorded flushes from `log`, now that the stored state is open."""
        self._log = log
        self._is_found.set()

    async def read(self) -> dict[str, str | None]:
        """Map ids of recorded flushes to tenants, None for all; wait until the state answers."""
        while True:
            await self._is_found.wait()
            try:
                return {} if self._log is None else self.due(await self._log.flushes())
            except Unavailable:
                await asyncio.sleep(RETRY_S)

    def due(self, flushes: Sequence[CacheFlush]) -> dict[str, str | None]:
        """Map the ids of recorded flushes to tenants, with the second ids of due repetitions."""
        now = self._monotonic()
        again = [one for one in flushes if one.again_s is not None]
        self._seen = {one.id: self._seen.get(one.id, now) for one in again}
        due: dict[str, str | None] = {}
        for one in flushes:
            due[one.id] = one.tenant_id
            if one.again_s is not None and now >= self._seen[one.id] + one.again_s:
                due[one.second_id] = one.tenant_id
        return due
