"""The usage that is not stored yet: added up in memory, stored once a second.

A gateway that is killed loses the counts of up to a second. A gateway stopped by a signal stores
these counts first. While the store is unavailable, counts are held by key and day and stored later.
Their memory does not grow with every request. A batch whose answer got lost is sent again under its
name, and is counted once.

A block that a request writes into the cache is counted in the row of that request. When a request
is the first to find the block, this is also counted in the writer's row, which may be a row of
another key, another day or (in a group) another tenant. The row does not count or name readers.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, date, datetime
from functools import partial
from typing import NamedTuple

import msgspec

from engine.link.event_messages import WrittenAndRead
from gateway.caller import Caller
from gateway.errors import Unavailable
from gateway.processes.periodic import repeated
from gateway.state.store import UsageStore
from gateway.state.usage_records import Counters, UsageRow

INTERVAL_S = 1.0
_ROWS_AT_ONCE = 500
_DAY_S = 86400

_DECODER = msgspec.json.Decoder(tuple[str, str, str])
_LOG = logging.getLogger(__name__)


class UsageKey(NamedTuple):
    """The key of a row in the usage store: an API key's usage on one day, `YYYY-MM-DD` in UTC.

    The engine is given the row's key as a label, which it never parses. The engine stores the label
    with the KV blocks and returns the label when the blocks are found. This may happen days later,
    at another gateway, for another tenant's request.
    """

    day: str
    tenant_id: str
    key_id: str

    def label(self) -> str:
        """Write the row's key as text."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, label: str) -> UsageKey | None:
        """Parse a label; return None for a label that no gateway of this release made."""
        try:
            row = cls(*_DECODER.decode(label))
            is_day = str(date.fromisoformat(row.day)) == row.day
        except (msgspec.MsgspecError, ValueError):
            return None
        return row if is_day and row.tenant_id and row.key_id else None


def day_of(moment: float) -> str:
    """Return the day, `YYYY-MM-DD` in UTC, of a time in seconds since the epoch."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d")


class UsageAggregator:
    """The sums of usage in one process. `clock` returns seconds since the epoch."""

    def __init__(self, usage_store: UsageStore, clock: Callable[[], float]) -> None:
        self._usage_store = usage_store
        self._clock = clock
        self._counted: dict[UsageKey, Counters] = {}
        self._batches: dict[str, list[UsageRow]] = {}
        self._today = (-1, "")  # the present day: days since the epoch, and the day as text
        self._has_dropped = False

    def add(self, caller: Caller, used: Counters) -> None:
        """Add usage of `caller`: a request's usage, or usage that became known after its end."""
        self._add(self._row_of(caller), used)

    def writer(self, caller: Caller) -> str:
        """Return the label under which the present day's cache writes of `caller` are counted."""
        return self._row_of(caller).label()

    def add_cache(self, writer: str, cache: WrittenAndRead) -> None:
        """Add tokens written under `writer`, and tokens read for the first time, by writer."""
        if cache.written:
            self._add_to(writer, Counters(cache_written_tokens=cache.written))
        for label, tokens in cache.first_reads.items():
            self._add_to(label, Counters(cache_read_tokens=tokens))

    async def store(self) -> None:
        """Store the added usage; raise Unavailable, and keep the usage that could not be stored."""
        if not self._batches:
            self._batches = self._packed()
        while self._batches:
            name, rows = next(iter(self._batches.items()))
            await self._usage_store.add_usage(rows, batch=name)
            del self._batches[name]

    @asynccontextmanager
    async def stored_regularly(self, interval_s: float = INTERVAL_S) -> AsyncIterator[None]:
        """Store every `interval_s` seconds while this context is open, and once more at the end."""
        try:
            async with repeated(partial(self._store_later, interval_s), "usage"):
                yield
        finally:
            await self._store_the_rest()

    def _row_of(self, caller: Caller) -> UsageKey:
        now = self._clock()
        if self._today[0] != now // _DAY_S:
            self._today = (int(now // _DAY_S), day_of(now))
        return UsageKey(self._today[1], caller.tenant_id, caller.key_id)

    def _add_to(self, label: str, used: Counters) -> None:
        row = UsageKey.of(label)
        if row is not None:
            self._add(row, used)
        elif not self._has_dropped:
            self._has_dropped = True
            _LOG.warning("the engine told a writer that names no row of usage; not counted")

    def _add(self, row: UsageKey, used: Counters) -> None:
        before = self._counted.get(row)
        self._counted[row] = used if before is None else before.plus(used)

    def _packed(self) -> dict[str, list[UsageRow]]:
        rows = [
            UsageRow(day=row.day, tenant_id=row.tenant_id, key_id=row.key_id, counters=counters)
            for row, counters in self._counted.items()
        ]
        self._counted = {}
        return {
            secrets.token_hex(16): rows[start : start + _ROWS_AT_ONCE]
            for start in range(0, len(rows), _ROWS_AT_ONCE)
        }

    async def _store_later(self, interval_s: float) -> None:
        await asyncio.sleep(interval_s)
        with suppress(Unavailable):
            await self.store()

    async def _store_the_rest(self) -> None:
        try:
            await self.store()  # first the rows that could not be stored before
            await self.store()  # then the rows counted since
        except Unavailable:
            lost = sum(map(len, self._batches.values())) + len(self._counted)
            _LOG.error("usage of %d keys could not be stored and is lost", lost)
