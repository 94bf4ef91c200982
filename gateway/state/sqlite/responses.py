"""The stored responses in SQLite, in the tables `responses` and `response_bytes`.

No answer waits for the disk, so a power cut may lose the latest responses. Later changes of tenants
and keys are synced as always. On a full disk, responses take none of the reserved room.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from gateway.state.records import ResponseRoom, StoredResponse, Tenant
from gateway.state.sqlite.file import transaction
from gateway.state.sqlite.worker import SqliteWorker, on_worker
from gateway.state.store_errors import missing, missing_response, taken

_EXPIRED_AT_ONCE = 256
_WANTED = "WHERE tenant_id = ? AND id = ? AND expires_at > ?"
_DECODER = msgspec.json.Decoder(StoredResponse)


class SqliteResponses(SqliteWorker):
    """The stored responses (`gateway.state.store.ResponseStore`) in a SQLite file."""

    async def keep_response(self, response: StoredResponse, room: ResponseRoom) -> bool:
        record = msgspec.json.encode(response)
        if not room.has_room_for(len(record)):
            return False
        await self.in_turn(
            response.tenant_id,
            self.run_in_room,
            lambda connection: _keep(connection, response, record, room),
        )
        return True

    async def find_response(
        self, tenant_id: str, response_id: str, *, now: float
    ) -> StoredResponse:
        wanted = (tenant_id, response_id, now)
        return await self.in_turn(
            tenant_id, self.read, lambda connection: _find(connection, wanted)
        )

    async def replace_response(self, response: StoredResponse, *, now: float) -> None:
        tenant_id, wanted = response.tenant_id, (response.tenant_id, response.id, now)
        record = msgspec.json.encode(response)

        def replace(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                _drop(connection, wanted)
                _insert(connection, response, record)

        await self.in_turn(tenant_id, self.run, replace)

    async def response_ids(self, tenant_id: str, beginning: str, *, now: float | None) -> list[str]:
        wanted = (tenant_id, float("-inf") if now is None else now, beginning, beginning)
        return await self.in_turn(tenant_id, self.read, lambda connection: _ids(connection, wanted))

    async def drop_response(self, tenant_id: str, response_id: str, *, now: float) -> None:
        wanted = (tenant_id, response_id, now)
        await self.in_turn(tenant_id, self.run, lambda connection: _drop(connection, wanted))

    async def count_responses(self, tenant_id: str) -> int:
        return await self.in_turn(
            tenant_id, self.read, lambda connection: _count(connection, tenant_id)
        )

    @on_worker
    def drop_expired_responses(self, connection: sqlite3.Connection, *, now: float) -> None:
        connection.execute(
            "DELETE FROM responses WHERE rowid IN"
            " (SELECT rowid FROM responses WHERE expires_at <= ? LIMIT ?)",
            (now, _EXPIRED_AT_ONCE),
        )


def drop_responses_of(connection: sqlite3.Connection, tenant_id: str) -> None:
    """Remove all responses of a tenant."""
    connection.execute("DELETE FROM responses WHERE tenant_id = ?", (tenant_id,))


def _count(connection: sqlite3.Connection, tenant_id: str) -> int:
    statement = "SELECT count(*) FROM responses WHERE tenant_id = ?"
    found: int = connection.execute(statement, (tenant_id,)).fetchone()[0]
    return found


def _find(connection: sqlite3.Connection, wanted: tuple[str, str, float]) -> StoredResponse:
    found = connection.execute(f"SELECT record FROM responses {_WANTED}", wanted).fetchone()
    if found is None:
        raise missing_response()
    return _DECODER.decode(found[0])


def _drop(connection: sqlite3.Connection, wanted: tuple[str, str, float]) -> None:
    if not connection.execute(f"DELETE FROM responses {_WANTED}", wanted).rowcount:
        raise missing_response()


def _keep(
    connection: sqlite3.Connection, response: StoredResponse, record: bytes, room: ResponseRoom
) -> None:
    with _unsynced(connection), transaction(connection):
        check_tenant(connection, response.tenant_id)
        _insert(connection, response, record)
        _make_room(connection, response.tenant_id, room)


def _insert(connection: sqlite3.Connection, response: StoredResponse, record: bytes) -> None:
    row = (
        response.tenant_id,
        response.id,
        response.created_at,
        response.expires_at,
        len(record),
        record,
    )
    added = connection.execute(
        "INSERT INTO responses (tenant_id, id, created_at, expires_at, size, record)"
        " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        row,
    )
    if not added.rowcount:
        raise taken()


def _ids(connection: sqlite3.Connection, wanted: tuple[str, float, str, str]) -> list[str]:
    found = connection.execute(
        "SELECT id FROM responses WHERE tenant_id = ? AND expires_at > ?"
        " AND substr(id, 1, length(?)) = ? ORDER BY created_at, rowid",
        wanted,
    )
    return [one for (one,) in found]


def check_tenant(connection: sqlite3.Connection, tenant_id: str) -> None:
    """Raise NotFound for a tenant that is deleted or disabled."""
    found = connection.execute("SELECT record FROM tenants WHERE id = ?", (tenant_id,)).fetchone()
    if found is None or msgspec.json.decode(found[0], type=Tenant).disabled:
        raise missing(Tenant)


def _make_room(connection: sqlite3.Connection, tenant_id: str, room: ResponseRoom) -> None:
    """Remove the oldest responses until the stored bytes fit into `room`.

    This tenant's responses are removed first, then responses of the tenant with the most bytes.
    """
    while _bytes(connection, "WHERE tenant_id = ?", tenant_id) > room.of_tenant:
        _drop_oldest(connection, tenant_id)
    while _bytes(connection) > room.of_all:
        (heaviest,) = connection.execute(
            "SELECT tenant_id FROM response_bytes ORDER BY bytes DESC LIMIT 1"
        ).fetchone()
        _drop_oldest(connection, heaviest)


def _bytes(connection: sqlite3.Connection, where: str = "", *values: str) -> int:
    statement = f"SELECT ifnull(sum(bytes), 0) FROM response_bytes {where}"
    return int(connection.execute(statement, values).fetchone()[0])


def _drop_oldest(connection: sqlite3.Connection, tenant_id: str) -> None:
    connection.execute(
        "DELETE FROM responses WHERE rowid = (SELECT rowid FROM responses WHERE tenant_id = ?"
        " ORDER BY created_at, rowid LIMIT 1)",
        (tenant_id,),
    )


@contextmanager
def _unsynced(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit this context's change without a sync. The next synced commit writes it to disk."""
    connection.execute("PRAGMA synchronous = NORMAL")
    try:
        yield
    finally:
        connection.execute("PRAGMA synchronous = FULL")
