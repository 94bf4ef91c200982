"""Usage on its way to the ledger: added up in memory, stored once a second.

A gateway that is killed loses its last second; one that is stopped by a signal stores it. While
the store is unavailable, counts are kept by key and day (so they do not grow with every request)
and stored later. A batch whose answer got lost is sent again under its name, and counted once.

What a request put into the cache is counted by the row of its writer (`cache_writer`), and what it
was the first to find there by the rows of those who had written it: other keys, other days, in a
group other tenants. No reader is counted or told.

Knows: who used what, and when. Does not know: what it costs.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from engine.messages import WrittenAndRead
from gateway.cache_writer import Writer
from gateway.caller import Caller
from gateway.errors import Unavailable
from gateway.state.records import Counters, UsageRow
from gateway.state.store import UsageLedger

INTERVAL_S = 1.0
_ROWS_AT_ONCE = 500

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Batch:
    name: str
    rows: list[UsageRow]


def day_of(moment: float) -> str:
    """The day, `YYYY-MM-DD` in UTC, of a time in seconds since the epoch."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d")


class Tally:
    """Counts for one process. `clock` gives seconds since the epoch."""

    def __init__(
        self,
        ledger: UsageLedger,
        clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._counted: dict[Writer, Counters] = {}
        self._batches: list[_Batch] = []
        self._has_dropped = False  # what came with a label that is none of ours

    def add(self, caller: Caller, used: Counters) -> None:
        """Count what `caller` used: a request, or what is learned about one after its end."""
        self._add(self._row_of(caller), used)

    def writer(self, caller: Caller) -> str:
        """The label under which `caller` writes into the cache today."""
        return self._row_of(caller).label()

    def settle_cache(self, writer: str, cache: WrittenAndRead) -> None:
        """Count what a request wrote under the label `writer`, and what it was first to read."""
        if cache.written:
            self._add_to(writer, Counters(cache_written_tokens=cache.written))
        for label, tokens in cache.first_reads.items():
            self._add_to(label, Counters(cache_read_tokens=tokens))

    async def store(self) -> None:
        """Store what was counted; raises Unavailable, and keeps what could not be stored."""
        if not self._batches:
            self._batches = self._packed()
        while self._batches:
            batch = self._batches[0]
            await self._ledger.add_usage(batch.rows, batch=batch.name)
            del self._batches[0]

    @asynccontextmanager
    async def stored_regularly(self, interval_s: float = INTERVAL_S) -> AsyncIterator[None]:
        """Store every `interval_s` seconds while this is open, and once more at the end."""
        storing = asyncio.create_task(self._store_always(interval_s))
        try:
            yield
        finally:
            storing.cancel()
            with suppress(asyncio.CancelledError):
                await storing
            await self._store_the_rest()

    def _row_of(self, caller: Caller) -> Writer:
        return Writer(day_of(self._clock()), caller.tenant_id, caller.key_id)

    def _add_to(self, label: str, used: Counters) -> None:
        """Count by a label; one that no gateway of this release made is dropped."""
        row = Writer.of(label)
        if row is not None:
            self._add(row, used)
        elif not self._has_dropped:
            self._has_dropped = True
            _LOG.warning("the engine told a writer that names no row of usage; not counted")

    def _add(self, row: Writer, used: Counters) -> None:
        before = self._counted.get(row)
        self._counted[row] = used if before is None else before.plus(used)

    def _packed(self) -> list[_Batch]:
        rows = [
            UsageRow(day=row.day, tenant_id=row.tenant_id, key_id=row.key_id, counters=counters)
            for row, counters in self._counted.items()
        ]
        self._counted = {}
        return [
            _Batch(secrets.token_hex(16), rows[start : start + _ROWS_AT_ONCE])
            for start in range(0, len(rows), _ROWS_AT_ONCE)
        ]

    async def _store_always(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            with suppress(Unavailable):
                await self.store()

    async def _store_the_rest(self) -> None:
        try:
            await self.store()  # what could not be stored before
            await self.store()  # what was counted since
        except Unavailable:
            lost = sum(len(batch.rows) for batch in self._batches) + len(self._counted)
            _LOG.error("usage of %d keys could not be stored and is lost", lost)
