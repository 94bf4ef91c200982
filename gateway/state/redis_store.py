"""The state in Redis, for several gateways.

Records are JSON, as in SQLite. Every change is one transaction (`redis_transaction`), which also
publishes changes of tenants, keys and prefixes to all gateways.

How durable a change is depends on Redis' configuration: with an append-only file that is synced
every second, a power cut may lose a second. After FLUSHALL everything is lost, and no key is valid.

Knows: which records and indexes a change affects. Does not know: how an index is kept consistent
(`redis_indexes`), usage (`redis_usage`), the client and its errors (`redis_link`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from gateway.errors import Conflict
from gateway.state import redis_keys as at
from gateway.state.records import ApiKey, AuditEntry, Group, PublishedPrefix, Tenant, UsageRow
from gateway.state.redis_indexes import expect_free, join, leave, missing, rename
from gateway.state.redis_link import RedisLink, unavailable
from gateway.state.redis_transaction import Changed, Transaction, Transactions
from gateway.state.redis_usage import RedisUsage
from gateway.state.store import AUDIT_KEPT

R = TypeVar("R", bound=msgspec.Struct)
Listed = TypeVar("Listed", Tenant, ApiKey, Group, PublishedPrefix)

_MAX_TRIES = 20  # of a change, while others change the same record
_encode = msgspec.json.encode

_FIND = """
local owner = redis.call('HGET', KEYS[1], ARGV[1])
if not owner then return false end
local ids = cjson.decode(owner)
return {redis.call('HGET', KEYS[2], ids[1]), redis.call('HGET', KEYS[3], ids[2])}
"""


class RedisStore:
    """`gateway.state.store.Store` on a Redis server. The link is closed with the store."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._transactions = Transactions(link)
        self._find = link.script(_FIND)
        self._usage = RedisUsage(link, self._transactions)

    async def create_tenant(self, tenant: Tenant) -> None:
        """Add a tenant; Conflict when its id or name is taken, NotFound without its group."""
        transaction = Transaction()
        expect_free(transaction, at.TENANTS, tenant.id)
        expect_free(transaction, at.TENANT_NAMES, tenant.name)
        join(transaction, tenant.id, None, tenant.group_id)
        transaction.write("HSET", at.TENANTS, tenant.id, _encode(tenant))
        transaction.write("HSET", at.TENANT_NAMES, tenant.name, tenant.id)
        await self._transactions.apply(transaction)

    async def list_tenants(self) -> list[Tenant]:
        """All tenants, oldest first."""
        return await self._every(at.TENANTS, Tenant)

    async def get_tenant(self, tenant_id: str) -> Tenant:
        """One tenant by id."""
        return (await self._one(at.TENANTS, tenant_id, Tenant))[0]

    async def update_tenant(self, tenant: Tenant) -> None:
        """Replace a tenant's record; Conflict for a taken name, NotFound without its group."""

        async def change() -> Transaction:
            old, transaction = await self._changing(at.TENANTS, tenant.id, Tenant)
            rename(transaction, at.TENANT_NAMES, tenant.id, old.name, tenant.name)
            join(transaction, tenant.id, old.group_id, tenant.group_id)
            transaction.write("HSET", at.TENANTS, tenant.id, _encode(tenant))
            transaction.write("PUBLISH", at.CHANGES, tenant.id)
            return transaction

        await self._apply(change)

    async def delete_tenant(self, tenant_id: str) -> None:
        """Remove a tenant and its keys."""

        async def change() -> Transaction:
            old, transaction = await self._changing(at.TENANTS, tenant_id, Tenant)
            keys = await self._keys_of(tenant_id)
            # Single keys are never removed, so the same number is the same keys.
            transaction.expect(["SCARD", at.keys_of(tenant_id)], len(keys))
            for key in keys:
                transaction.write("HDEL", at.KEYS, key.id)
                transaction.write("HDEL", at.DIGESTS, key.digest)
            leave(transaction, tenant_id, old.group_id)
            transaction.write("DEL", at.keys_of(tenant_id))
            transaction.write("HDEL", at.TENANTS, tenant_id)
            transaction.write("HDEL", at.TENANT_NAMES, old.name)
            transaction.write("PUBLISH", at.CHANGES, tenant_id)
            return transaction

        await self._apply(change)

    async def create_key(self, key: ApiKey) -> None:
        """Add a key to an existing tenant; Conflict when its id or digest is taken."""
        transaction = Transaction()
        transaction.expect(["HEXISTS", at.TENANTS, key.tenant_id], 1, missing(at.TENANTS))
        expect_free(transaction, at.KEYS, key.id)
        expect_free(transaction, at.DIGESTS, key.digest)
        transaction.write("HSET", at.KEYS, key.id, _encode(key))
        transaction.write("HSET", at.DIGESTS, key.digest, _encode([key.id, key.tenant_id]))
        transaction.write("SADD", at.keys_of(key.tenant_id), key.id)
        transaction.write("PUBLISH", at.CHANGES, key.tenant_id)  # whoever knows it as unknown
        await self._transactions.apply(transaction)

    async def list_keys(self, tenant_id: str) -> list[ApiKey]:
        """A tenant's keys, oldest first."""
        await self.get_tenant(tenant_id)
        return _sorted(await self._keys_of(tenant_id))

    async def get_key(self, key_id: str) -> ApiKey:
        """One key by id."""
        return (await self._one(at.KEYS, key_id, ApiKey))[0]

    async def update_key(self, key: ApiKey) -> None:
        """Replace a key's expiry and revocation; a revocation once stored stays."""

        async def change() -> Transaction:
            old, transaction = await self._changing(at.KEYS, key.id, ApiKey)
            transaction.write("HSET", at.KEYS, key.id, _encode(old.updated(key)))
            transaction.write("PUBLISH", at.CHANGES, old.tenant_id)
            return transaction

        await self._apply(change)

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        """The key with this digest and its tenant; None when no such key was ever made."""
        found = await self._find([at.DIGESTS, at.KEYS, at.TENANTS], [digest])
        if found is None or None in found:
            return None
        key, tenant = found
        return msgspec.json.decode(key, type=ApiKey), msgspec.json.decode(tenant, type=Tenant)

    async def create_group(self, group: Group) -> None:
        """Add a group; Conflict when its id or name is taken."""
        transaction = Transaction()
        expect_free(transaction, at.GROUPS, group.id)
        expect_free(transaction, at.GROUP_NAMES, group.name)
        transaction.write("HSET", at.GROUPS, group.id, _encode(group))
        transaction.write("HSET", at.GROUP_NAMES, group.name, group.id)
        await self._transactions.apply(transaction)

    async def list_groups(self) -> list[Group]:
        """All groups, oldest first."""
        return await self._every(at.GROUPS, Group)

    async def get_group(self, group_id: str) -> Group:
        """One group by id."""
        return (await self._one(at.GROUPS, group_id, Group))[0]

    async def update_group(self, group: Group) -> None:
        """Replace a group's record; Conflict when its new name is taken."""

        async def change() -> Transaction:
            old, transaction = await self._changing(at.GROUPS, group.id, Group)
            rename(transaction, at.GROUP_NAMES, group.id, old.name, group.name)
            transaction.write("HSET", at.GROUPS, group.id, _encode(group))
            return transaction

        await self._apply(change)

    async def delete_group(self, group_id: str) -> None:
        """Remove a group; Conflict while a tenant or a live prefix belongs to it."""

        async def change() -> Transaction:
            old, transaction = await self._changing(at.GROUPS, group_id, Group)
            has_members = Conflict("the group still has tenants or published prefixes")
            transaction.expect(["SCARD", at.members_of(group_id)], 0, has_members)
            transaction.write("HDEL", at.GROUPS, group_id)
            transaction.write("HDEL", at.GROUP_NAMES, old.name)
            return transaction

        await self._apply(change)

    async def create_prefix(self, prefix: PublishedPrefix) -> None:
        """Add a prefix; Conflict when its id or (name, version) is taken."""
        transaction, version = Transaction(), at.version_of(prefix.name, prefix.version)
        expect_free(transaction, at.PREFIXES, prefix.id)
        expect_free(transaction, at.PREFIX_VERSIONS, version)
        join(transaction, prefix.id, None, _live_group(prefix))
        transaction.write("HSET", at.PREFIXES, prefix.id, _encode(prefix))
        transaction.write("HSET", at.PREFIX_VERSIONS, version, prefix.id)
        transaction.write("PUBLISH", at.CHANGES, prefix.id)
        await self._transactions.apply(transaction)

    async def list_prefixes(self) -> list[PublishedPrefix]:
        """All prefixes, the deleted ones too, oldest first."""
        return await self._every(at.PREFIXES, PublishedPrefix)

    async def get_prefix(self, prefix_id: str) -> PublishedPrefix:
        """One prefix by id."""
        return (await self._one(at.PREFIXES, prefix_id, PublishedPrefix))[0]

    async def update_prefix(self, prefix: PublishedPrefix) -> None:
        """Replace a prefix's token count and deletion; a deletion once stored stays."""

        async def change() -> Transaction:
            old, transaction = await self._changing(at.PREFIXES, prefix.id, PublishedPrefix)
            new = old.updated(prefix)
            join(transaction, prefix.id, _live_group(old), _live_group(new))
            transaction.write("HSET", at.PREFIXES, prefix.id, _encode(new))
            transaction.write("PUBLISH", at.CHANGES, prefix.id)
            return transaction

        await self._apply(change)

    async def add_usage(self, rows: Sequence[UsageRow], *, batch: str) -> None:
        """Add the rows' counters to what is stored; the same batch twice counts once."""
        await self._usage.add(rows, batch)

    async def usage(
        self,
        first_day: str,
        last_day: str,
        *,
        tenant_id: str | None = None,
        key_id: str | None = None,
    ) -> list[UsageRow]:
        """The rows from one day to another, both included, by day, tenant and key."""
        return await self._usage.rows(first_day, last_day, tenant_id, key_id)

    async def append_audit(self, entry: AuditEntry) -> None:
        """Add an entry; beyond AUDIT_KEPT the oldest go."""
        transaction = Transaction()
        transaction.write("LPUSH", at.AUDIT, _encode(entry))
        transaction.write("LTRIM", at.AUDIT, "0", str(AUDIT_KEPT - 1))
        await self._transactions.apply(transaction)

    async def list_audit(self, *, limit: int, skip: int = 0) -> list[AuditEntry]:
        """At most `limit` entries, newest first, after leaving out the `skip` newest."""
        if limit <= 0:
            return []
        found = await self._link.command("LRANGE", at.AUDIT, skip, skip + limit - 1)
        return [msgspec.json.decode(entry, type=AuditEntry) for entry in found]

    async def close(self) -> None:
        """Close the connections."""
        await self._link.close()

    async def _apply(self, change: Callable[[], Awaitable[Transaction]]) -> None:
        """Make and apply a transaction; repeat while others change the same data in between."""
        for _ in range(_MAX_TRIES):
            try:
                return await self._transactions.apply(await change())
            except Changed:
                continue
        raise unavailable()

    async def _changing(self, place: str, record_id: str, kind: type[R]) -> tuple[R, Transaction]:
        """The record, and a transaction that is applied only if the record has not changed."""
        record, stored = await self._one(place, record_id, kind)
        transaction = Transaction()
        transaction.expect(["HGET", place, record_id], stored)
        return record, transaction

    async def _one(self, place: str, record_id: str, kind: type[R]) -> tuple[R, bytes]:
        stored = await self._link.command("HGET", place, record_id)
        if stored is None:
            raise missing(place)
        return msgspec.json.decode(stored, type=kind), stored

    async def _every(self, place: str, kind: type[Listed]) -> list[Listed]:
        stored = await self._link.command("HVALS", place)
        return _sorted([msgspec.json.decode(record, type=kind) for record in stored])

    async def _keys_of(self, tenant_id: str) -> list[ApiKey]:
        ids = await self._link.command("SMEMBERS", at.keys_of(tenant_id))
        if not ids:
            return []
        stored = await self._link.command("HMGET", at.KEYS, *ids)
        return [msgspec.json.decode(key, type=ApiKey) for key in stored if key is not None]


def _sorted(records: list[Listed]) -> list[Listed]:
    return sorted(records, key=lambda record: (record.created_at, record.id))


def _live_group(prefix: PublishedPrefix) -> str | None:
    return prefix.group_id if prefix.deleted_at is None else None
