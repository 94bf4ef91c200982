"""The usage ledger in Redis: one hash for each tenant and day, whose numbers are only added to.

Knows: how counters are stored. Does not know: what is counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.state import redis_keys as at
from gateway.state.records import Counters, UsageRow
from gateway.state.redis_link import RedisLink
from gateway.state.redis_transaction import Changed, Transaction, Transactions

_BATCH_KEPT_S = "3600"


class RedisUsage:
    """The ledger on one link."""

    def __init__(self, link: RedisLink, transactions: Transactions) -> None:
        self._link = link
        self._transactions = transactions

    async def add(self, rows: Sequence[UsageRow], batch: str) -> None:
        """Add every counter of every row, unless `batch` has been added before."""
        transaction = Transaction()
        transaction.expect(["EXISTS", at.batch_of(batch)], 0)
        transaction.write("SET", at.batch_of(batch), "1", "EX", _BATCH_KEPT_S)
        for row in rows:
            transaction.write("ZADD", at.USAGE_DAYS, at.day_number(row.day), row.day)
            transaction.write("SADD", at.usage_tenants(row.day), row.tenant_id)
            for counter, value in row.counters.known().items():
                add = "HINCRBYFLOAT" if isinstance(value, float) else "HINCRBY"
                place = at.usage_of(row.day, row.tenant_id)
                transaction.write(add, place, f"{row.key_id}:{counter}", repr(value))
        try:
            await self._transactions.apply(transaction)
        except Changed:
            return  # counted already

    async def rows(
        self, first_day: str, last_day: str, tenant_id: str | None, key_id: str | None
    ) -> list[UsageRow]:
        """The rows from one day to another, by day, tenant and key."""
        places = await self._places(first_day, last_day, tenant_id)
        found = await self._link.commands(
            [("HGETALL", at.usage_of(day, tenant)) for day, tenant in places]
        )
        return [
            UsageRow(day=day, tenant_id=tenant, key_id=key, counters=counters)
            for (day, tenant), fields in zip(places, found, strict=True)
            for key, counters in sorted(_by_key(fields).items())
            if key_id in (None, key)
        ]

    async def _places(
        self, first_day: str, last_day: str, tenant_id: str | None
    ) -> list[tuple[str, str]]:
        """The days and tenants that there may be rows of, in order."""
        bounds = at.day_number(first_day), at.day_number(last_day)
        stored = await self._link.command("ZRANGEBYSCORE", at.USAGE_DAYS, *bounds)
        days = [day.decode() for day in stored]
        if tenant_id is not None:
            return [(day, tenant_id) for day in days]
        tenants = await self._link.commands([("SMEMBERS", at.usage_tenants(day)) for day in days])
        return sorted(
            (day, tenant.decode())
            for day, of_day in zip(days, tenants, strict=True)
            for tenant in of_day
        )


def _by_key(fields: dict[bytes, bytes]) -> dict[str, Counters]:
    """A hash's fields, which are keys and counters, put in order."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for field, value in fields.items():
        key, _, counter = field.decode().rpartition(":")
        found[key][counter] = msgspec.json.decode(value)
    return {key: msgspec.convert(counters, Counters) for key, counters in found.items()}
