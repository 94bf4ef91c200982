"""The schema of the state's SQLite file, and how an older file is brought to the newest one.

Records are stored whole in `record`, as JSON; the other columns are those that must be unique, by
which records are found, or by which lists are ordered. Each counter of usage is a row of its own,
so that a new counter does not change the schema either.

Knows: the schema and its history. Does not know: what the statements of `sqlite` are for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec

from gateway.sqlite_file import open_shared, transaction
from gateway.state.records import ApiKey, Tenant

BUSY_TIMEOUT_S = 10.0


class SchemaTooNew(Exception):
    """The file was written by a later release, and this one cannot know what it holds."""


def open_file(path: Path) -> sqlite3.Connection:
    """Open or make the file (0600), waiting for the disk.

    Raises FileExposed when others may read the file, SchemaTooNew, or sqlite3.DatabaseError when
    it is no database.
    """

    def prepare(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA synchronous = FULL")
        _migrate(connection, path)
        connection.execute("PRAGMA foreign_keys = ON")  # no effect inside a transaction

    return open_shared(path, prepare, busy_s=BUSY_TIMEOUT_S, check_same_thread=False)


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema to the newest version in one transaction."""
    with transaction(connection):
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(_MIGRATIONS):
            raise SchemaTooNew(
                f"{path} has schema version {version}, this release knows {len(_MIGRATIONS)}"
            )
        for migrate in _MIGRATIONS[version:]:
            migrate(connection)
        connection.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")  # takes no parameters


def _columns(connection: sqlite3.Connection) -> None:
    """Version 1: tenants and keys, a column to a field."""
    _execute(
        connection,
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
    )


def _whole_records(connection: sqlite3.Connection) -> None:
    """Version 2: records whole; groups, prefixes, usage and the audit log."""
    tenants = connection.execute(
        "SELECT id, name, created_at, disabled, weight FROM tenants ORDER BY rowid"
    ).fetchall()
    keys = connection.execute(
        "SELECT id, tenant_id, digest, hint, created_at, expires_at, revoked_at FROM keys"
        " ORDER BY rowid"
    ).fetchall()
    _execute(connection, "DROP TABLE keys", "DROP TABLE tenants", *_VERSION_2)
    for tenant_id, name, created_at, disabled, weight in tenants:
        tenant = Tenant(
            id=tenant_id, name=name, created_at=created_at, disabled=bool(disabled), weight=weight
        )
        connection.execute(
            "INSERT INTO tenants (id, name, created_at, record) VALUES (?, ?, ?, ?)",
            (tenant_id, name, created_at, msgspec.json.encode(tenant)),
        )
    for key_id, tenant_id, digest, hint, created_at, expires_at, revoked_at in keys:
        key = ApiKey(
            id=key_id,
            tenant_id=tenant_id,
            digest=digest,
            hint=hint,
            created_at=created_at,
            expires_at=expires_at,
            revoked_at=revoked_at,
        )
        connection.execute(
            "INSERT INTO keys (id, tenant_id, digest, created_at, record) VALUES (?, ?, ?, ?, ?)",
            (key.id, key.tenant_id, key.digest, key.created_at, msgspec.json.encode(key)),
        )


_VERSION_2 = (
    """CREATE TABLE groups (
        id TEXT PRIMARY KEY NOT NULL,
        name TEXT NOT NULL UNIQUE,
        created_at REAL NOT NULL,
        record BLOB NOT NULL
    )""",
    """CREATE TABLE tenants (
        id TEXT PRIMARY KEY NOT NULL,
        name TEXT NOT NULL UNIQUE,
        group_id TEXT REFERENCES groups (id),
        created_at REAL NOT NULL,
        record BLOB NOT NULL
    )""",
    "CREATE INDEX tenants_of_group ON tenants (group_id)",
    """CREATE TABLE keys (
        id TEXT PRIMARY KEY NOT NULL,
        tenant_id TEXT NOT NULL REFERENCES tenants (id) ON DELETE CASCADE,
        digest BLOB NOT NULL UNIQUE,
        created_at REAL NOT NULL,
        record BLOB NOT NULL
    )""",
    "CREATE INDEX keys_of_tenant ON keys (tenant_id)",
    # group_id is NULL for a prefix that is for everyone, and for one that was deleted.
    """CREATE TABLE prefixes (
        id TEXT PRIMARY KEY NOT NULL,
        name TEXT NOT NULL,
        version INTEGER NOT NULL,
        group_id TEXT REFERENCES groups (id),
        created_at REAL NOT NULL,
        record BLOB NOT NULL,
        UNIQUE (name, version)
    )""",
    "CREATE INDEX prefixes_of_group ON prefixes (group_id)",
    """CREATE TABLE usage (
        day TEXT NOT NULL,
        tenant_id TEXT NOT NULL,
        key_id TEXT NOT NULL,
        counter TEXT NOT NULL,
        value NUMERIC NOT NULL,
        PRIMARY KEY (day, tenant_id, key_id, counter)
    ) WITHOUT ROWID""",
    "CREATE TABLE usage_batches (batch TEXT PRIMARY KEY NOT NULL, at REAL NOT NULL) WITHOUT ROWID",
    "CREATE TABLE audit (id INTEGER PRIMARY KEY AUTOINCREMENT, record BLOB NOT NULL)",
)

# One entry takes the schema from version i to i + 1; entries are only ever added.
_MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_columns, _whole_records)


def _execute(connection: sqlite3.Connection, *statements: str) -> None:
    for statement in statements:
        connection.execute(statement)
