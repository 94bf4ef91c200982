"""The tenants, keys, groups and published prefixes in Redis, each with its indexes.

A record is found by its id in the hash of its kind. An index of its kind maps the unique value (a
name, a digest, a version) to the id. A group has a set of its members, and a tenant a set of its
keys. If another change comes first, the later change is tried again.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from gateway.state.records import ApiKey, Group, PublishedPrefix, Tenant
from gateway.state.redis import keys as at
from gateway.state.redis.identity import StateLink
from gateway.state.redis.large import UNSIZED
from gateway.state.redis.link import unavailable
from gateway.state.redis.record_reader import read_record
from gateway.state.redis.response_changes import drop_all
from gateway.state.redis.transaction import Changed, Transaction
from gateway.state.store import D, R, Record, live_group
from gateway.state.store_errors import has_members, missing, taken

_MAX_TRIES = 20
_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class _Place:
    records: str  # the Redis key of the map from id to record
    index: str  # the Redis key of the map from the unique value to id
    size: int = 0  # bytes expected of one record; 0: a small record


_PLACES: dict[type[Record], _Place] = {
    Tenant: _Place(at.TENANTS, at.TENANT_NAMES),
    ApiKey: _Place(at.KEYS, at.DIGESTS),
    Group: _Place(at.GROUPS, at.GROUP_NAMES),
    PublishedPrefix: _Place(at.PREFIXES, at.PREFIX_VERSIONS, UNSIZED),
}


class RedisRecords:
    """The records (`gateway.state.store.Records`) in Redis, on one link."""

    def __init__(self, link: StateLink) -> None:
        self.link = link

    async def create(self, record: R) -> None:
        place, transaction = _PLACES[type(record)], Transaction()
        owner = record.id
        if isinstance(record, ApiKey):
            owner = record.tenant_id
            transaction.expect(["HEXISTS", at.TENANTS, owner], 1, missing(Tenant))
            transaction.write("SADD", at.keys_of(owner), record.id)
        _expect_free(transaction, place.records, record.id)
        _expect_free(transaction, place.index, _unique(record))
        _join(transaction, record.id, None, live_group(record))
        found = _encode([record.id, owner]) if isinstance(record, ApiKey) else record.id
        transaction.write("HSET", place.index, _unique(record), found)
        _keep(transaction, record)
        await self.link.apply(transaction)

    async def every(self, kind: type[R]) -> list[R]:
        return _read(kind, await self.link.command("HVALS", _PLACES[kind].records, size=UNSIZED))

    async def get(self, kind: type[R], record_id: str) -> R:
        return (await self._changing(kind, record_id))[0]

    async def update(self, kind: type[R], record_id: str, change: Callable[[R], R]) -> R:
        stored: R | None = None

        async def changed() -> Transaction:
            nonlocal stored
            old, transaction = await self._changing(kind, record_id)
            new = stored = old.updated(change(old))
            if _unique(new) != _unique(old):
                index = _PLACES[kind].index
                _expect_free(transaction, index, _unique(new))
                transaction.write("HDEL", index, _unique(old))
                transaction.write("HSET", index, _unique(new), new.id)
            _join(transaction, new.id, live_group(old), live_group(new))
            if isinstance(new, Tenant) and new.disabled:
                await drop_all(self.link, transaction, new.id)
            _keep(transaction, new)
            return transaction

        await self._repeat(changed)
        assert stored is not None
        return stored

    async def delete(self, kind: type[D], record_id: str) -> None:
        await self._repeat(lambda: self._deletion(kind, record_id))

    async def list_keys(self, tenant_id: str) -> list[ApiKey]:
        await self.get(Tenant, tenant_id)
        return await self._keys_of(tenant_id)

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        owner = await self.link.command("HGET", at.DIGESTS, digest)
        if owner is None:
            return None
        key_id, tenant_id = read_record(owner, tuple[str, str])
        key, tenant = await self.link.commands(
            [("HGET", at.KEYS, key_id), ("HGET", at.TENANTS, tenant_id)]
        )
        if key is None or tenant is None:
            return None
        return read_record(key, ApiKey), read_record(tenant, Tenant)

    async def _keys_of(self, tenant_id: str) -> list[ApiKey]:
        ids = await self.link.command("SMEMBERS", at.keys_of(tenant_id), size=UNSIZED)
        if not ids:
            return []
        return _read(ApiKey, await self.link.command("HMGET", at.KEYS, *ids, size=UNSIZED))

    async def _deletion(self, kind: type[D], record_id: str) -> Transaction:
        old, transaction = await self._changing(kind, record_id)
        if isinstance(old, Group):
            transaction.expect(["SCARD", at.members_of(old.id)], 0, has_members())
        else:
            keys = await self._keys_of(old.id)
            # Single keys are never removed, so an equal number of keys means the same keys.
            transaction.expect(["SCARD", at.keys_of(old.id)], len(keys))
            for key in keys:
                transaction.write("HDEL", at.KEYS, key.id)
                transaction.write("HDEL", at.DIGESTS, key.digest)
            transaction.write("DEL", at.keys_of(old.id))
            transaction.write("UNLINK", at.schemas_of(old.id))
            await drop_all(self.link, transaction, old.id)
            _join(transaction, old.id, old.group_id, None)
        transaction.write("HDEL", _PLACES[kind].records, old.id)
        transaction.write("HDEL", _PLACES[kind].index, old.name)
        transaction.write("PUBLISH", at.CHANGES, old.id)
        return transaction

    async def _repeat(self, change: Callable[[], Awaitable[Transaction]]) -> None:
        for _ in range(_MAX_TRIES):
            try:
                return await self.link.apply(await change())
            except Changed:
                continue
        raise unavailable()

    async def _changing(self, kind: type[R], record_id: str) -> tuple[R, Transaction]:
        place, size = _PLACES[kind].records, _PLACES[kind].size
        stored = await self.link.command("HGET", place, record_id, size=size)
        if stored is None:
            raise missing(kind)
        transaction = Transaction()
        transaction.expect(["HGET", place, record_id], stored)
        return read_record(stored, kind), transaction


def _read(kind: type[R], stored: list[bytes | None]) -> list[R]:
    records = [read_record(record, kind) for record in stored if record is not None]
    return sorted(records, key=lambda record: (record.created_at, record.id))


def _keep(transaction: Transaction, record: Record) -> None:
    """Write a record, and tell other gateways which tenant it belongs to."""
    transaction.write("HSET", _PLACES[type(record)].records, record.id, _encode(record))
    whose = record.tenant_id if isinstance(record, ApiKey) else record.id
    transaction.write("PUBLISH", at.CHANGES, whose)


def _unique(record: Record) -> str | bytes:
    if isinstance(record, ApiKey):
        return record.digest
    if isinstance(record, PublishedPrefix):
        return at.version_of(record.name, record.version)
    return record.name


def _expect_free(transaction: Transaction, place: str, field: str | bytes) -> None:
    transaction.expect(["HEXISTS", place, field], 0, taken())


def _join(transaction: Transaction, member_id: str, old: str | None, new: str | None) -> None:
    """Move a member from one group to another; raise NotFound if the group does not exist."""
    if new == old:
        return
    if old is not None:
        transaction.write("SREM", at.members_of(old), member_id)
    if new is not None:
        transaction.expect(["HEXISTS", at.GROUPS, new], 1, missing(Group))
        transaction.write("SADD", at.members_of(new), member_id)
