"""The state of one machine, in one SQLite file.

All statements run on threads (`worker`), so the event loop never waits for the disk. Several
processes may open the same file. WAL lets processes read while another process writes. A writer
waits for another writer for ten seconds at most. A commit is on the disk before the call returns,
so a revocation survives a power cut. Names of tables and columns (`schema`) are the code's own, and
values are always parameters.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from gateway.errors import GatewayError
from gateway.state.identity import ExpectedState
from gateway.state.records import ApiKey, Group, PublishedPrefix, Tenant
from gateway.state.reserved_room import ReservedRoom
from gateway.state.sqlite.database import DatabaseFile
from gateway.state.sqlite.file import transaction
from gateway.state.sqlite.operation import SqliteOperation
from gateway.state.sqlite.responses import drop_responses_of
from gateway.state.sqlite.schema import make_schema
from gateway.state.sqlite.worker import on_lookups, on_reads, on_worker
from gateway.state.store import D, R, Record, live_group
from gateway.state.store_errors import has_members, missing, taken
from gateway.state.usage_records import Counters, UsageRow

BUSY_TIMEOUT_S = 10.0
BATCHES_KEPT_S = 3600.0
# The primary key begins with the day, so a tenant's rows are looked up for each of the days. The
# time grows with the days and the found rows, not with other tenants' rows.
_USAGE = (
    "SELECT day, tenant_id, key_id, json_group_object(counter, value) FROM usage"
    " WHERE day BETWEEN :first AND :last"
)
_USAGE_OF_TENANT = (
    "WITH RECURSIVE days (day) AS"
    " (SELECT :first UNION ALL SELECT date(day, '+1 day') FROM days WHERE day < :last)"
    " SELECT day, tenant_id, key_id, json_group_object(counter, value)"
    " FROM days CROSS JOIN usage USING (day) WHERE tenant_id = :tenant"
)
_TABLES: dict[type[Record], str] = {
    Tenant: "tenants",
    ApiKey: "keys",
    Group: "groups",
    PublishedPrefix: "prefixes",
}


class SqliteStore(SqliteOperation):
    """The state (`gateway.state.store.Store`) in a SQLite file. For any task of one event loop.

    The constructor opens or makes the file (0600), waiting for the disk. A damaged file is opened
    too, and then every call raises StateLost. Raises FileExposed if others may read the file,
    SchemaTooNew, WrongState, or a DatabaseFault if it cannot be opened.
    """

    def __init__(
        self, path: Path, expected: ExpectedState | None = None, room: ReservedRoom | None = None
    ) -> None:
        expected = expected or ExpectedState("state", path.name)
        prepare = partial(make_schema, path=path)
        super().__init__(DatabaseFile(path, expected, prepare, room, busy_s=BUSY_TIMEOUT_S))

    @on_worker
    def create(self, connection: sqlite3.Connection, record: R) -> None:
        """Add a record; raise Conflict if a unique value is taken, NotFound for a missing owner."""
        row = _row(record)
        columns, values = ", ".join(row), ", ".join(f":{name}" for name in row)
        with _constrained(_missing_owner(record)):
            connection.execute(
                f"INSERT INTO {_TABLES[type(record)]} ({columns}) VALUES ({values})", row
            )

    @on_reads
    def every(self, connection: sqlite3.Connection, kind: type[R]) -> list[R]:
        return _every(connection, kind)

    @on_lookups
    def get(self, connection: sqlite3.Connection, kind: type[R], record_id: str) -> R:
        return _one(connection, kind, record_id)

    @on_worker
    def update(
        self,
        connection: sqlite3.Connection,
        kind: type[R],
        record_id: str,
        change: Callable[[R], R],
    ) -> R:
        """Replace a record by the record that `change` makes; raise the errors of `create`."""
        with transaction(connection):
            old = _one(connection, kind, record_id)
            record = old.updated(change(old))
            row = _row(record)
            changes = ", ".join(f"{name} = :{name}" for name in row)
            with _constrained(_missing_owner(record)):
                connection.execute(f"UPDATE {_TABLES[kind]} SET {changes} WHERE id = :id", row)
            if isinstance(record, Tenant) and record.disabled:
                drop_responses_of(connection, record.id)
        return record

    @on_worker
    def delete(self, connection: sqlite3.Connection, kind: type[D], record_id: str) -> None:
        with _constrained(has_members()):
            statement = f"DELETE FROM {_TABLES[kind]} WHERE id = ?"
            if not connection.execute(statement, (record_id,)).rowcount:
                raise missing(kind)

    @on_reads
    def list_keys(self, connection: sqlite3.Connection, tenant_id: str) -> list[ApiKey]:
        _one(connection, Tenant, tenant_id)
        return _every(connection, ApiKey, tenant_id=tenant_id)

    @on_lookups
    def find_by_digest(
        self, connection: sqlite3.Connection, digest: bytes
    ) -> tuple[ApiKey, Tenant] | None:
        found = connection.execute(
            "SELECT keys.record, tenants.record FROM keys"
            " JOIN tenants ON tenants.id = keys.tenant_id WHERE keys.digest = ?",
            (digest,),
        ).fetchone()
        if found is None:
            return None
        key, tenant = found
        return msgspec.json.decode(key, type=ApiKey), msgspec.json.decode(tenant, type=Tenant)

    @on_worker
    def add_usage(
        self, connection: sqlite3.Connection, rows: Sequence[UsageRow], *, batch: str
    ) -> None:
        values = [
            (row.day, row.tenant_id, row.key_id, counter, value)
            for row in rows
            for counter, value in row.counters.known().items()
        ]
        now = time.time()
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

    async def usage(
        self,
        first_day: str,
        last_day: str,
        *,
        tenant_id: str | None = None,
        key_id: str | None = None,
    ) -> list[UsageRow]:
        statement = _USAGE if tenant_id is None else _USAGE_OF_TENANT
        if key_id is not None:
            statement += " AND key_id = :key"
        wanted = {"first": first_day, "last": last_day, "tenant": tenant_id, "key": key_id}
        return await self.in_turn(
            tenant_id, self.read, lambda connection: _usage(connection, statement, wanted)
        )


def _one(connection: sqlite3.Connection, kind: type[R], record_id: str) -> R:
    statement = f"SELECT record FROM {_TABLES[kind]} WHERE id = ?"
    found = connection.execute(statement, (record_id,)).fetchone()
    if found is None:
        raise missing(kind)
    return msgspec.json.decode(found[0], type=kind)


def _every(connection: sqlite3.Connection, kind: type[R], **wanted: str) -> list[R]:
    where = " AND ".join(f"{name} = :{name}" for name in wanted) or "TRUE"
    statement = f"SELECT record FROM {_TABLES[kind]} WHERE {where} ORDER BY created_at, rowid"
    decoder = msgspec.json.Decoder(kind)
    return [decoder.decode(record) for (record,) in connection.execute(statement, wanted)]


def _usage(
    connection: sqlite3.Connection, statement: str, wanted: dict[str, str | None]
) -> list[UsageRow]:
    """List the usage rows that `statement` finds. Counters unknown to this release are ignored."""
    decoder = msgspec.json.Decoder(Counters)
    grouped = statement + " GROUP BY day, tenant_id, key_id ORDER BY day, tenant_id, key_id"
    return [
        UsageRow(day=day, tenant_id=tenant, key_id=key, counters=decoder.decode(counters))
        for day, tenant, key, counters in connection.execute(grouped, wanted)
    ]


def _row(record: Record) -> dict[str, Any]:
    row = {"id": record.id, "created_at": record.created_at, "record": msgspec.json.encode(record)}
    if isinstance(record, ApiKey):
        return row | {"tenant_id": record.tenant_id, "digest": record.digest}
    row["name"] = record.name
    if isinstance(record, PublishedPrefix):
        row["version"] = record.version
    return row if isinstance(record, Group) else row | {"group_id": live_group(record)}


def _missing_owner(record: Record) -> GatewayError:
    return missing(Tenant if isinstance(record, ApiKey) else Group)


@contextmanager
def _constrained(dangling: GatewayError) -> Iterator[None]:
    """Raise SQLite's constraint errors as the gateway's errors.

    A broken reference raises `dangling`.
    """
    try:
        yield
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
            raise dangling from error
        raise taken() from error
