"""Statements on the tables of `sqlite_schema`: a record in, a record out.

Knows: SQL, and what SQLite's errors mean here. Does not know: which fields are columns
(`sqlite`). Names of tables and columns are the code's own; values are always parameters.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Protocol, TypeVar

import msgspec

from gateway.errors import Conflict, GatewayError, Unavailable
from gateway.sqlite_file import transaction
from gateway.state.records import ApiKey, AuditEntry, Counters, Tenant, UsageRow
from gateway.state.store import AUDIT_KEPT

T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)
Row = dict[str, Any]

RETRY_AFTER_S = 1.0
BATCHES_KEPT_S = 3600.0


class Stored(Protocol):
    """What every record has."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def created_at(self) -> float:
        """When it was made."""
        ...


def translated(work: Callable[[sqlite3.Connection], T], connection: sqlite3.Connection) -> T:
    """Do `work`; Unavailable if the file is locked for too long, full or unreadable."""
    try:
        return work(connection)
    except sqlite3.OperationalError as error:
        raise Unavailable(
            "the state cannot be read or written at the moment",
            code="state_unavailable",
            retry_after_s=RETRY_AFTER_S,
        ) from error


def record_row(record: Stored) -> Row:
    """The columns that every record's table has."""
    return {
        "id": record.id,
        "created_at": record.created_at,
        "record": msgspec.json.encode(record),
    }


def insert(
    connection: sqlite3.Connection, table: str, row: Row, dangling: Callable[[], GatewayError]
) -> None:
    """Add a row; Conflict if a unique value is taken, `dangling()` if it refers to no row."""
    columns, values = ", ".join(row), ", ".join(f":{name}" for name in row)
    with _constrained(dangling):
        connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({values})", row)


def update(
    connection: sqlite3.Connection, table: str, row: Row, dangling: Callable[[], GatewayError]
) -> int:
    """Replace the row with this id; returns how many there were. Raises as `insert` does."""
    changes = ", ".join(f"{name} = :{name}" for name in row)
    with _constrained(dangling):
        return connection.execute(f"UPDATE {table} SET {changes} WHERE id = :id", row).rowcount


def delete(
    connection: sqlite3.Connection,
    table: str,
    record_id: str,
    dangling: Callable[[], GatewayError],
) -> int:
    """Remove the row with this id; how many there were. `dangling()` if others refer to it."""
    with _constrained(dangling):
        return connection.execute(f"DELETE FROM {table} WHERE id = ?", (record_id,)).rowcount


def one(
    connection: sqlite3.Connection,
    table: str,
    kind: type[R],
    record_id: str,
    missing: Callable[[], GatewayError],
) -> R:
    """The record with this id; raises `missing()`."""
    found = connection.execute(f"SELECT record FROM {table} WHERE id = ?", (record_id,)).fetchone()
    if found is None:
        raise missing()
    return msgspec.json.decode(found[0], type=kind)


def every(connection: sqlite3.Connection, table: str, kind: type[R], **wanted: str) -> list[R]:
    """All records whose columns are as `wanted`, oldest first."""
    where = " AND ".join(f"{name} = :{name}" for name in wanted) or "TRUE"
    statement = f"SELECT record FROM {table} WHERE {where} ORDER BY created_at, rowid"
    decoder = msgspec.json.Decoder(kind)
    return [decoder.decode(record) for (record,) in connection.execute(statement, wanted)]


def key_and_tenant(connection: sqlite3.Connection, digest: bytes) -> tuple[ApiKey, Tenant] | None:
    """The key with this digest, and its tenant."""
    found = connection.execute(
        "SELECT keys.record, tenants.record FROM keys JOIN tenants ON tenants.id = keys.tenant_id"
        " WHERE keys.digest = ?",
        (digest,),
    ).fetchone()
    if found is None:
        return None
    key, tenant = found
    return msgspec.json.decode(key, type=ApiKey), msgspec.json.decode(tenant, type=Tenant)


def add_usage(
    connection: sqlite3.Connection, usage: Sequence[UsageRow], batch: str, now: float
) -> None:
    """Add every counter of every row, unless `batch` has been added before."""
    values = [
        (row.day, row.tenant_id, row.key_id, counter, value)
        for row in usage
        for counter, value in row.counters.known().items()
    ]
    with transaction(connection):
        connection.execute("DELETE FROM usage_batches WHERE at < ?", (now - BATCHES_KEPT_S,))
        fresh = connection.execute(
            "INSERT INTO usage_batches (batch, at) VALUES (?, ?) ON CONFLICT DO NOTHING",
            (batch, now),
        ).rowcount
        if fresh:
            connection.executemany(
                "INSERT INTO usage (day, tenant_id, key_id, counter, value)"
                " VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET value = value + excluded.value",
                values,
            )


def usage(
    connection: sqlite3.Connection, first_day: str, last_day: str, wanted: dict[str, str]
) -> list[UsageRow]:
    """The rows from one day to another, by day, tenant and key."""
    where = "".join(f" AND {name} = :{name}" for name in wanted)
    found = connection.execute(
        "SELECT day, tenant_id, key_id, counter, value FROM usage"
        f" WHERE day BETWEEN :first_day AND :last_day{where} ORDER BY day, tenant_id, key_id",
        {**wanted, "first_day": first_day, "last_day": last_day},
    )
    return [
        UsageRow(day=day, tenant_id=tenant, key_id=key, counters=_counters(list(counters)))
        for (day, tenant, key), counters in groupby(found, key=lambda row: row[:3])
    ]


def append_audit(connection: sqlite3.Connection, entry: AuditEntry) -> None:
    """Add an entry and let the oldest go."""
    with transaction(connection):
        number = connection.execute(
            "INSERT INTO audit (record) VALUES (?)", (msgspec.json.encode(entry),)
        ).lastrowid
        connection.execute("DELETE FROM audit WHERE id <= ?", ((number or 0) - AUDIT_KEPT,))


def audit(connection: sqlite3.Connection, limit: int, skip: int) -> list[AuditEntry]:
    """Entries, newest first."""
    found = connection.execute(
        "SELECT record FROM audit ORDER BY id DESC LIMIT ? OFFSET ?", (limit, skip)
    )
    return [msgspec.json.decode(record, type=AuditEntry) for (record,) in found]


def _counters(found: list[tuple[Any, ...]]) -> Counters:
    """Counters that this release does not know are ignored."""
    return msgspec.convert({name: value for *_, name, value in found}, Counters)


@contextmanager
def _constrained(dangling: Callable[[], GatewayError]) -> Iterator[None]:
    """The one place where SQLite's constraints become the gateway's errors."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
            raise dangling() from error
        raise Conflict("the name or id is taken") from error
