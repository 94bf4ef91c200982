"""The state in one SQLite file, for one machine.

All statements run on one worker thread that owns the connection, so the event loop never
waits for the disk. Several processes may open the same file: WAL lets them read while one
writes, and a writer waits for another for ten seconds at most. A commit is on the disk
before the call returns, so a revocation survives a power cut.

Knows: which records lie in which table. Does not know: SQL (`sqlite_rows`), the schema
(`sqlite_schema`), what a key looks like, or who may see what.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from gateway.errors import Conflict, NotFound
from gateway.sqlite_file import transaction
from gateway.state import sqlite_rows as sql
from gateway.state.records import ApiKey, AuditEntry, Group, PublishedPrefix, Tenant, UsageRow
from gateway.state.sqlite_schema import open_file

T = TypeVar("T")


class SqliteStore:
    """`gateway.state.store.Store` on a SQLite file. Call it from any task of one event loop.

    The constructor opens or makes the file (0600), waiting for the disk. Raises FileExposed
    when others may read the file, SchemaTooNew, or sqlite3.DatabaseError when it is no database.
    """

    def __init__(self, path: Path) -> None:
        self._connection = open_file(path)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ratoon-sqlite")

    async def create_tenant(self, tenant: Tenant) -> None:
        """Add a tenant; Conflict when its id or name is taken, NotFound without its group."""
        await self._run(lambda c: sql.insert(c, "tenants", _tenant_row(tenant), _no_group))

    async def list_tenants(self) -> list[Tenant]:
        """All tenants, oldest first."""
        return await self._run(lambda c: sql.every(c, "tenants", Tenant))

    async def get_tenant(self, tenant_id: str) -> Tenant:
        """One tenant by id."""
        return await self._run(lambda c: sql.one(c, "tenants", Tenant, tenant_id, _no_tenant))

    async def update_tenant(self, tenant: Tenant) -> None:
        """Replace a tenant's record; Conflict for a taken name, NotFound without its group."""
        row = _tenant_row(tenant)
        if not await self._run(lambda c: sql.update(c, "tenants", row, _no_group)):
            raise _no_tenant()

    async def delete_tenant(self, tenant_id: str) -> None:
        """Remove a tenant and its keys."""
        if not await self._run(lambda c: sql.delete(c, "tenants", tenant_id, _no_tenant)):
            raise _no_tenant()

    async def create_key(self, key: ApiKey) -> None:
        """Add a key to an existing tenant; Conflict when its id or digest is taken."""
        row = {**sql.record_row(key), "tenant_id": key.tenant_id, "digest": key.digest}
        await self._run(lambda c: sql.insert(c, "keys", row, _no_tenant))

    async def list_keys(self, tenant_id: str) -> list[ApiKey]:
        """A tenant's keys, oldest first."""
        await self.get_tenant(tenant_id)
        return await self._run(lambda c: sql.every(c, "keys", ApiKey, tenant_id=tenant_id))

    async def get_key(self, key_id: str) -> ApiKey:
        """One key by id."""
        return await self._run(lambda c: sql.one(c, "keys", ApiKey, key_id, _no_key))

    async def update_key(self, key: ApiKey) -> None:
        """Replace a key's expiry and revocation; a revocation once stored stays."""

        def change(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                after = sql.one(connection, "keys", ApiKey, key.id, _no_key).updated(key)
                sql.update(connection, "keys", sql.record_row(after), _no_tenant)

        await self._run(change)

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        """The key with this digest and its tenant; None when no such key was ever made."""
        return await self._run(lambda c: sql.key_and_tenant(c, digest))

    async def create_group(self, group: Group) -> None:
        """Add a group; Conflict when its id or name is taken."""
        await self._run(lambda c: sql.insert(c, "groups", _group_row(group), _no_group))

    async def list_groups(self) -> list[Group]:
        """All groups, oldest first."""
        return await self._run(lambda c: sql.every(c, "groups", Group))

    async def get_group(self, group_id: str) -> Group:
        """One group by id."""
        return await self._run(lambda c: sql.one(c, "groups", Group, group_id, _no_group))

    async def update_group(self, group: Group) -> None:
        """Replace a group's record; Conflict when its new name is taken."""
        if not await self._run(lambda c: sql.update(c, "groups", _group_row(group), _no_group)):
            raise _no_group()

    async def delete_group(self, group_id: str) -> None:
        """Remove a group; Conflict while a tenant or a live prefix belongs to it."""
        if not await self._run(lambda c: sql.delete(c, "groups", group_id, _has_members)):
            raise _no_group()

    async def create_prefix(self, prefix: PublishedPrefix) -> None:
        """Add a prefix; Conflict when its id or (name, version) is taken."""
        await self._run(lambda c: sql.insert(c, "prefixes", _prefix_row(prefix), _no_group))

    async def list_prefixes(self) -> list[PublishedPrefix]:
        """All prefixes, the deleted ones too, oldest first."""
        return await self._run(lambda c: sql.every(c, "prefixes", PublishedPrefix))

    async def get_prefix(self, prefix_id: str) -> PublishedPrefix:
        """One prefix by id."""
        return await self._run(
            lambda c: sql.one(c, "prefixes", PublishedPrefix, prefix_id, _no_prefix)
        )

    async def update_prefix(self, prefix: PublishedPrefix) -> None:
        """Replace a prefix's token count and deletion; a deletion once stored stays."""

        def change(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                old = sql.one(connection, "prefixes", PublishedPrefix, prefix.id, _no_prefix)
                row = _prefix_row(old.updated(prefix))
                sql.update(connection, "prefixes", row, _no_group)

        await self._run(change)

    async def add_usage(self, rows: Sequence[UsageRow], *, batch: str) -> None:
        """Add the rows' counters to what is stored; the same batch twice counts once."""
        await self._run(lambda c: sql.add_usage(c, rows, batch, time.time()))

    async def usage(
        self,
        first_day: str,
        last_day: str,
        *,
        tenant_id: str | None = None,
        key_id: str | None = None,
    ) -> list[UsageRow]:
        """The rows from one day to another, both included, by day, tenant and key."""
        wanted = {"tenant_id": tenant_id, "key_id": key_id}
        given = {name: value for name, value in wanted.items() if value is not None}
        return await self._run(lambda c: sql.usage(c, first_day, last_day, given))

    async def append_audit(self, entry: AuditEntry) -> None:
        """Add an entry; beyond AUDIT_KEPT the oldest go."""
        await self._run(lambda c: sql.append_audit(c, entry))

    async def list_audit(self, *, limit: int, skip: int = 0) -> list[AuditEntry]:
        """At most `limit` entries, newest first, after leaving out the `skip` newest."""
        return await self._run(lambda c: sql.audit(c, limit, skip))

    async def close(self) -> None:
        """Close the file after the statements under way."""
        await asyncio.get_running_loop().run_in_executor(self._worker, self._connection.close)
        self._worker.shutdown()

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, sql.translated, work, self._connection)


def _tenant_row(tenant: Tenant) -> sql.Row:
    return {**sql.record_row(tenant), "name": tenant.name, "group_id": tenant.group_id}


def _group_row(group: Group) -> sql.Row:
    return {**sql.record_row(group), "name": group.name}


def _prefix_row(prefix: PublishedPrefix) -> sql.Row:
    """A deleted prefix keeps its group alive no longer."""
    return {
        **sql.record_row(prefix),
        "name": prefix.name,
        "version": prefix.version,
        "group_id": prefix.group_id if prefix.deleted_at is None else None,
    }


def _no_tenant() -> NotFound:
    return NotFound("no such tenant")


def _no_key() -> NotFound:
    return NotFound("no such key")


def _no_group() -> NotFound:
    return NotFound("no such group")


def _no_prefix() -> NotFound:
    return NotFound("no such prefix")


def _has_members() -> Conflict:
    return Conflict("the group still has tenants or published prefixes")
