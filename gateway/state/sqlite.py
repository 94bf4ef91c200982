"""Tenants and keys in one SQLite file: the home of the state on one machine.

All statements run on one worker thread that owns the connection, so the event loop never
waits for the disk. Several processes may open the same file: WAL lets them read while one
writes, and a writer waits for another for up to BUSY_TIMEOUT_S. A commit is on the disk
before the call returns, so a revocation survives a power cut.

Knows: SQL. Does not know: what a key looks like, or who may see what.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import asdict

from gateway.errors import Conflict, NotFound
from gateway.private_file import require_private
from gateway.state.records import ApiKey, Tenant

T = TypeVar("T")

BUSY_TIMEOUT_S = 10.0

# One entry takes the schema from version i to i + 1; entries are only ever added.
_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE tenants (
            id TEXT PRIMARY KEY NOT NULL,
            name TEXT NOT NULL UNIQUE,
            created_at REAL NOT NULL,
            disabled INTEGER NOT NULL,
            weight REAL NOT NULL
        )""",
        """CREATE TABLE keys (
            id TEXT PRIMARY KEY NOT NULL,
            tenant_id TEXT NOT NULL REFERENCES tenants (id) ON DELETE CASCADE,
            digest BLOB NOT NULL UNIQUE,
            hint TEXT NOT NULL,
            created_at REAL NOT NULL,
            expires_at REAL,
            revoked_at REAL
        )""",
        "CREATE INDEX keys_of_tenant ON keys (tenant_id)",
    ),
)

_TENANT = "tenants.id, tenants.name, tenants.created_at, tenants.disabled, tenants.weight"
_KEY = (
    "keys.id, keys.tenant_id, keys.digest, keys.hint,"
    " keys.created_at, keys.expires_at, keys.revoked_at"
)


class SchemaTooNew(Exception):
    """The file was written by a later release, and this one cannot know what it holds."""


class SqliteStore:
    """`gateway.state.store.Store` on a SQLite file. Call it from any task of one event loop.

    The constructor opens or makes the file (0600), waiting for the disk. Raises FileExposed
    when others may read the file, SchemaTooNew, or sqlite3.DatabaseError when it is no database.
    """

    def __init__(self, path: Path) -> None:
        self._connection = _open(path)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ratoon-sqlite")

    async def create_tenant(self, tenant: Tenant) -> None:
        """Add a tenant; Conflict when its id or name is taken."""
        await self._run(
            _change,
            "INSERT INTO tenants (id, name, created_at, disabled, weight)"
            " VALUES (:id, :name, :created_at, :disabled, :weight)",
            asdict(tenant),
        )

    async def list_tenants(self) -> list[Tenant]:
        """All tenants, oldest first."""
        rows = await self._run(
            _fetch, f"SELECT {_TENANT} FROM tenants ORDER BY created_at, rowid", {}
        )
        return [_tenant(row) for row in rows]

    async def get_tenant(self, tenant_id: str) -> Tenant:
        """One tenant by id."""
        rows = await self._run(
            _fetch, f"SELECT {_TENANT} FROM tenants WHERE id = :id", {"id": tenant_id}
        )
        if not rows:
            raise _no_tenant()
        return _tenant(rows[0])

    async def update_tenant(self, tenant: Tenant) -> None:
        """Replace a tenant's record; Conflict when its new name is taken."""
        changed = await self._run(
            _change,
            "UPDATE tenants SET name = :name, created_at = :created_at, disabled = :disabled,"
            " weight = :weight WHERE id = :id",
            asdict(tenant),
        )
        if not changed:
            raise _no_tenant()

    async def delete_tenant(self, tenant_id: str) -> None:
        """Remove a tenant and its keys."""
        if not await self._run(_change, "DELETE FROM tenants WHERE id = :id", {"id": tenant_id}):
            raise _no_tenant()

    async def create_key(self, key: ApiKey) -> None:
        """Add a key to an existing tenant."""
        await self._run(
            _change,
            "INSERT INTO keys (id, tenant_id, digest, hint, created_at, expires_at, revoked_at)"
            " VALUES (:id, :tenant_id, :digest, :hint, :created_at, :expires_at, :revoked_at)",
            asdict(key),
        )

    async def list_keys(self, tenant_id: str) -> list[ApiKey]:
        """A tenant's keys, oldest first."""
        await self.get_tenant(tenant_id)
        rows = await self._run(
            _fetch,
            f"SELECT {_KEY} FROM keys WHERE tenant_id = :id ORDER BY created_at, rowid",
            {"id": tenant_id},
        )
        return [_key(row) for row in rows]

    async def get_key(self, key_id: str) -> ApiKey:
        """One key by id."""
        rows = await self._run(_fetch, f"SELECT {_KEY} FROM keys WHERE id = :id", {"id": key_id})
        if not rows:
            raise _no_key()
        return _key(rows[0])

    async def update_key(self, key: ApiKey) -> None:
        """Replace a key's expiry and revocation; a revocation once stored stays."""
        changed = await self._run(
            _change,
            "UPDATE keys SET expires_at = :expires_at,"
            " revoked_at = COALESCE(revoked_at, :revoked_at) WHERE id = :id",
            asdict(key),
        )
        if not changed:
            raise _no_key()

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        """The key with this digest and its tenant; None when no such key was ever made."""
        rows = await self._run(
            _fetch,
            f"SELECT {_KEY}, {_TENANT} FROM keys JOIN tenants ON tenants.id = keys.tenant_id"
            " WHERE keys.digest = :digest",
            {"digest": digest},
        )
        return (_key(rows[0][:7]), _tenant(rows[0][7:])) if rows else None

    async def close(self) -> None:
        """Close the file after the statements under way."""
        await asyncio.get_running_loop().run_in_executor(self._worker, self._connection.close)
        self._worker.shutdown()

    async def _run(
        self,
        work: Callable[[sqlite3.Connection, str, dict[str, Any]], T],
        statement: str,
        values: dict[str, Any],
    ) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, work, self._connection, statement, values)


def _fetch(
    connection: sqlite3.Connection, statement: str, values: dict[str, Any]
) -> list[tuple[Any, ...]]:
    return connection.execute(statement, values).fetchall()


def _change(connection: sqlite3.Connection, statement: str, values: dict[str, Any]) -> int:
    """Run one statement, its own transaction, and return how many rows it touched."""
    with _translated():
        return connection.execute(statement, values).rowcount


@contextmanager
def _translated() -> Iterator[None]:
    """The one place where SQLite's constraints become the gateway's errors."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
            raise _no_tenant() from error
        raise Conflict("The name or id is taken.") from error


def _open(path: Path) -> sqlite3.Connection:
    _make_private(path)
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    with ExitStack() as on_failure:
        on_failure.callback(connection.close)
        _enter_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        _migrate(connection, path)
        on_failure.pop_all()
    return connection


def _make_private(path: Path) -> None:
    """Make the file 0600 before SQLite would make it otherwise; -wal and -shm inherit its mode.

    A file that is there is looked at, not opened: closing any descriptor of it would drop the
    locks that another connection of this process holds.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        require_private(path, path.stat().st_mode)


def _enter_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL. SQLite's busy handler does not cover this switch, so the wait is here."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema to the newest version in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(_MIGRATIONS):
        raise SchemaTooNew(
            f"{path} has schema version {version}, this release knows {len(_MIGRATIONS)}"
        )
    for statements in _MIGRATIONS[version:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")  # takes no parameters
    connection.execute("COMMIT")


def _tenant(row: tuple[Any, ...]) -> Tenant:
    tenant_id, name, created_at, disabled, weight = row
    return Tenant(
        id=tenant_id, name=name, created_at=created_at, disabled=bool(disabled), weight=weight
    )


def _key(row: tuple[Any, ...]) -> ApiKey:
    key_id, tenant_id, digest, hint, created_at, expires_at, revoked_at = row
    return ApiKey(
        id=key_id,
        tenant_id=tenant_id,
        digest=digest,
        hint=hint,
        created_at=created_at,
        expires_at=expires_at,
        revoked_at=revoked_at,
    )


def _no_tenant() -> NotFound:
    return NotFound("No such tenant.")


def _no_key() -> NotFound:
    return NotFound("No such key.")
