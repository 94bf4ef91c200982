"""A tenant's holds as rows of the limits' SQLite file, in the table `holds`.

The callers begin transactions.
"""

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.limits.holds import Held

_TABLE = """CREATE TABLE holds (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    until INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    period TEXT,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID"""
_INDEX = "CREATE INDEX holds_by_end ON holds (tenant, until)"
_COLUMNS = "until, tokens, cost, period"
_ONE = "WHERE tenant = ? AND id = ?"


def add_rows(connection: sqlite3.Connection) -> bool:
    """Create the table `holds` unless it exists; return whether it was created."""
    found = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'holds'").fetchone()
    if found is not None:
        return False
    connection.execute(_TABLE)
    connection.execute(_INDEX)
    return True


class HeldRows:
    """A tenant's holds (`gateway.limits.holds.Holds`) in one connection's transaction."""

    def __init__(self, connection: sqlite3.Connection, tenant_id: str) -> None:
        self._connection = connection
        self._tenant_id = tenant_id

    def get(self, request_id: str) -> Held | None:
        return self._one(f"SELECT {_COLUMNS} FROM holds {_ONE}", request_id)

    def put(self, request_id: str, held: Held) -> None:
        row = (self._tenant_id, request_id, held.until, held.tokens, held.cost, held.period)
        self._connection.execute("INSERT INTO holds VALUES (?, ?, ?, ?, ?, ?)", row)

    def take(self, request_id: str) -> Held | None:
        return self._one(f"DELETE FROM holds {_ONE} RETURNING {_COLUMNS}", request_id)

    def renew(self, request_ids: Sequence[str], until: int) -> None:
        rows = [(until, self._tenant_id, request_id) for request_id in request_ids]
        self._connection.executemany(f"UPDATE holds SET until = ? {_ONE}", rows)

    def lapse(self, now: int) -> Sequence[Held]:
        return self._all(
            f"DELETE FROM holds WHERE tenant = ? AND until <= ? RETURNING {_COLUMNS}", now
        )

    def shorten(self, latest: int) -> None:
        self._connection.execute(
            "UPDATE holds SET until = ?1 WHERE tenant = ?2 AND until > ?1",
            (latest, self._tenant_id),
        )

    def _one(self, statement: str, request_id: str) -> Held | None:
        found = self._all(statement, request_id)
        return found[0] if found else None

    def _all(self, statement: str, value: Any) -> list[Held]:
        rows = self._connection.execute(statement, (self._tenant_id, value)).fetchall()
        return msgspec.convert(rows, list[Held])
