"""The schema of the state's SQLite file.

Records are stored whole in `record`, as JSON. The other columns hold values that must be unique,
that records are found by, or that lists are ordered by. Each counter of usage is a row, so a new
counter does not change the schema.

A release that changes the schema raises VERSION, and brings files of older releases to the new
schema. No release had version 1. Version 3 added stored responses, version 4 reports, version 5
engines, version 6 flushes, and version 7 module schemas.
"""

import sqlite3
from pathlib import Path

VERSION = 7
_OLDEST = 2


class SchemaTooNew(Exception):
    """The error of a file that a later release has written with a newer schema."""


def make_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Bring a new or older file to the schema, in the caller's transaction; raise SchemaTooNew."""
    # makes SQLite overwrite deleted content in the file
    connection.execute("PRAGMA secure_delete = ON")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != 0 and not _OLDEST <= version <= VERSION:
        raise SchemaTooNew(f"{path} has schema version {version}, this release knows {VERSION}")
    if version == VERSION:
        return
    for added, statements in _ADDED.items():
        for statement in statements if version < added else ():
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {VERSION}")  # PRAGMA takes no parameters


_TABLES = (
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
    # group_id is NULL for a prefix for everyone, and for a deleted prefix.
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

# Triggers add up the bytes, since deleting a tenant also deletes its responses.
_RESPONSES = (
    """CREATE TABLE responses (
        tenant_id TEXT NOT NULL REFERENCES tenants (id) ON DELETE CASCADE,
        id TEXT NOT NULL,
        created_at REAL NOT NULL,
        expires_at REAL NOT NULL,
        size INTEGER NOT NULL,
        record BLOB NOT NULL,
        PRIMARY KEY (tenant_id, id)
    )""",
    "CREATE INDEX responses_by_age ON responses (tenant_id, created_at)",
    "CREATE INDEX responses_by_end ON responses (expires_at)",
    """CREATE TABLE response_bytes (
        tenant_id TEXT PRIMARY KEY NOT NULL REFERENCES tenants (id) ON DELETE CASCADE,
        bytes INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TRIGGER response_kept AFTER INSERT ON responses BEGIN
        INSERT INTO response_bytes VALUES (NEW.tenant_id, NEW.size)
        ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes;
    END""",
    """CREATE TRIGGER response_gone AFTER DELETE ON responses BEGIN
        UPDATE response_bytes SET bytes = bytes - OLD.size WHERE tenant_id = OLD.tenant_id;
    END""",
)

_REPORTS = (
    "CREATE TABLE reports (name TEXT PRIMARY KEY NOT NULL, record BLOB NOT NULL) WITHOUT ROWID",
)

_ENGINES = (
    "CREATE TABLE engines (address TEXT PRIMARY KEY NOT NULL, record BLOB NOT NULL) WITHOUT ROWID",
)

# The flow of a flush of everything is "".
_FLUSHES = (
    "CREATE TABLE flushes (flow TEXT PRIMARY KEY NOT NULL, at REAL NOT NULL, record BLOB NOT NULL)",
)

_MODULES = (
    """CREATE TABLE module_schemas (
        tenant_id TEXT NOT NULL REFERENCES tenants (id) ON DELETE CASCADE,
        id TEXT NOT NULL,
        created_at REAL NOT NULL,
        record BLOB NOT NULL,
        PRIMARY KEY (tenant_id, id)
    )""",
)

_ADDED = {
    2: _TABLES,
    3: _RESPONSES,
    4: _REPORTS,
    5: _ENGINES,
    6: _FLUSHES,
    7: _MODULES,
}
