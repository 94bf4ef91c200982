"""The state of several gateways, in Redis.

Records are JSON, as in SQLite. Every change is one transaction (`transaction`), which also
publishes changes of tenants, keys and prefixes to all gateways. Usage is one hash for each tenant
and day. The numbers in a hash only grow.

The configuration of Redis decides how durable a change is. With an append-only file that is synced
every second, a power cut may lose a second. After FLUSHALL everything is lost, and calls raise
StateLost.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from gateway.processes.periodic import repeated
from gateway.processes.tenant_turns import seen_out
from gateway.state.identity import ExpectedState
from gateway.state.records import AuditEntry, CacheFlush, IsolationReport, RegisteredEngine
from gateway.state.redis import keys as at
from gateway.state.redis.identity import REDIS, StateLink
from gateway.state.redis.large import UNSIZED
from gateway.state.redis.link import RedisLink
from gateway.state.redis.modules import RedisModules
from gateway.state.redis.record_reader import read_by, read_record
from gateway.state.redis.transaction import Changed, Transaction
from gateway.state.store import AUDIT_KEPT, Listener, since
from gateway.state.store_errors import missing_engine
from gateway.state.usage_records import Counters, UsageRow

RECONNECT_S = 0.5
PING_S = 5.0
_BATCH_KEPT_S = "3600"
# maximum number of fields of a command, since Lua passes at most some thousand words
_FIELDS_AT_ONCE = 1000


class RedisStore(RedisModules):
    """The state (`gateway.state.store.Store`) in Redis. The link is closed with the store.

    Every call raises StateLost while Redis does not hold the `expected` state. If no state is
    expected, the first state that is found or begun becomes the expected state. `remember` is
    called with the state's id.
    """

    def __init__(
        self,
        link: RedisLink,
        expected: ExpectedState | None = None,
        remember: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(StateLink(link, expected or ExpectedState("state", REDIS), remember))

    async def add_usage(self, rows: Sequence[UsageRow], *, batch: str) -> None:
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
            await self.link.apply(transaction)
        except Changed:
            return  # the batch is counted already

    async def usage(
        self,
        first_day: str,
        last_day: str,
        *,
        tenant_id: str | None = None,
        key_id: str | None = None,
    ) -> list[UsageRow]:
        async with self.link.turn_of(tenant_id):
            places = await self._places(first_day, last_day, tenant_id)
            ask = [("HGETALL", at.usage_of(day, tenant)) for day, tenant in places]
            found = await self.link.commands(ask, size=UNSIZED)
            decode = partial(_rows, places, found)
            rows = await seen_out(asyncio.to_thread(read_by, decode, UsageRow))
        return [row for row in rows if key_id in (None, row.key_id)]

    async def append_audit(self, entry: AuditEntry) -> None:
        transaction = Transaction()
        transaction.write("LPUSH", at.AUDIT, msgspec.json.encode(entry))
        transaction.write("LTRIM", at.AUDIT, "0", str(AUDIT_KEPT - 1))
        await self.link.apply(transaction)

    async def list_audit(self, *, limit: int, skip: int = 0) -> list[AuditEntry]:
        if limit <= 0:
            return []
        last = skip + limit - 1
        found = await self.link.command("LRANGE", at.AUDIT, skip, last, size=UNSIZED)
        return [read_record(entry, AuditEntry) for entry in found]

    async def keep_isolation_report(self, report: IsolationReport) -> None:
        transaction = Transaction()
        transaction.write("SET", at.ISOLATION_REPORT, msgspec.json.encode(report))
        await self.link.apply(transaction)

    async def isolation_report(self) -> IsolationReport | None:
        found = await self.link.command("GET", at.ISOLATION_REPORT, size=UNSIZED)
        return None if found is None else read_record(found, IsolationReport)

    async def register_engine(self, engine: RegisteredEngine) -> None:
        """Register an engine, in place of any engine with its address.

        Only the process that started an engine registers its address, so no transaction is needed.
        """
        before = await self.link.command("HGET", at.ENGINES, engine.address)
        transaction = Transaction()
        record = msgspec.json.encode(since(engine, before))
        transaction.write("HSET", at.ENGINES, engine.address, record)
        await self.link.apply(transaction)

    async def forget_engine(self, address: str) -> None:
        transaction = Transaction()
        transaction.expect(["HEXISTS", at.ENGINES, address], 1, missing_engine())
        transaction.write("HDEL", at.ENGINES, address)
        await self.link.apply(transaction)

    async def registered_engines(self) -> list[RegisteredEngine]:
        found = await self.link.command("HVALS", at.ENGINES, size=UNSIZED)
        engines = [read_record(record, RegisteredEngine) for record in found]
        return sorted(engines, key=lambda engine: engine.address)

    async def add_flush(self, flush: CacheFlush) -> None:
        transaction = Transaction()
        if flush.tenant_id is None:
            transaction.write("DEL", at.FLUSHES)
        record = msgspec.json.encode(flush)
        transaction.write("HSET", at.FLUSHES, flush.tenant_id or "", record)
        transaction.write("PUBLISH", at.CHANGES, flush.id)
        await self.link.apply(transaction)

    async def flushes(self) -> list[CacheFlush]:
        found = await self.link.command("HVALS", at.FLUSHES, size=UNSIZED)
        flushes = [read_record(record, CacheFlush) for record in found]
        return sorted(flushes, key=lambda flush: flush.at)

    async def fold_flushes(self, into: CacheFlush, tenant_ids: Sequence[str]) -> None:
        transaction = Transaction()
        before = await self.link.command("HGET", at.FLUSHES, "")
        if before is None:
            transaction.expect(["HEXISTS", at.FLUSHES, ""], 0)
        elif read_record(before, CacheFlush).at > into.at:
            return
        else:
            transaction.expect(["HGET", at.FLUSHES, ""], before)
        for start in range(0, len(tenant_ids), _FIELDS_AT_ONCE):
            some = tenant_ids[start : start + _FIELDS_AT_ONCE]
            transaction.write("HDEL", at.FLUSHES, *some)
        transaction.write("HSET", at.FLUSHES, "", msgspec.json.encode(into))
        with suppress(Changed):  # a flush of everything was recorded, so nothing is left to fold
            await self.link.apply(transaction)

    async def close(self) -> None:
        await self.link.close()

    async def _places(
        self, first_day: str, last_day: str, tenant_id: str | None
    ) -> list[tuple[str, str]]:
        bounds = at.day_number(first_day), at.day_number(last_day)
        stored = await self.link.command("ZRANGEBYSCORE", at.USAGE_DAYS, *bounds)
        days = [day.decode() for day in stored]
        if tenant_id is not None:
            return [(day, tenant_id) for day in days]
        ask = [("SMEMBERS", at.usage_tenants(day)) for day in days]
        tenants = await self.link.commands(ask, size=UNSIZED)
        return sorted(
            (day, tenant.decode())
            for day, of_day in zip(days, tenants, strict=True)
            for tenant in of_day
        )


def _rows(places: Sequence[tuple[str, str]], found: Sequence[dict[bytes, bytes]]) -> list[UsageRow]:
    return [
        UsageRow(day=day, tenant_id=tenant, key_id=key, counters=counters)
        for (day, tenant), fields in zip(places, found, strict=True)
        for key, counters in sorted(_by_key(fields).items())
    ]


def _by_key(fields: dict[bytes, bytes]) -> dict[str, Counters]:
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for field, value in fields.items():
        key, _, counter = field.decode().rpartition(":")
        found[key][counter] = msgspec.json.decode(value)
    return {key: msgspec.convert(counters, Counters) for key, counters in found.items()}


@asynccontextmanager
async def told_of_changes(client: Redis, *listeners: Listener) -> AsyncIterator[None]:
    """Notify `listeners` of other gateways' changes while this context is open.

    Messages may get lost when a connection breaks or a server restarts. The harm is limited,
    because keyrings look keys up again after a few seconds. After each new subscription everything
    is looked up again. `client` is not closed.
    """
    async with repeated(partial(_hear_once, client, listeners), "changes"):
        yield


async def _hear_once(client: Redis, listeners: Sequence[Listener]) -> None:
    with suppress(RedisError, OSError):
        async with client.pubsub() as channel:
            await _hear(channel, listeners)
    await asyncio.sleep(RECONNECT_S)


async def _hear(channel: PubSub, listeners: Sequence[Listener]) -> None:
    """Listen until the connection breaks or Redis answers no ping."""
    await channel.subscribe(at.CHANGES)
    last_word = time.monotonic()
    while time.monotonic() - last_word < 2 * PING_S:
        message = await channel.get_message(timeout=PING_S)
        if message is None:
            await channel.ping()
            continue
        last_word = time.monotonic()
        for listener in listeners:
            _tell(message, listener)


def _tell(message: dict[str, Any], listener: Listener) -> None:
    if message["type"] == "subscribe":
        listener.reload()
    elif message["type"] == "message":
        listener.forget(message["data"].decode())
