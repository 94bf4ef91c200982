"""The operators' and engines' records in SQLite: audit log, report, engines, flushes."""

import sqlite3
from collections.abc import Sequence

import msgspec

from gateway.state.records import AuditEntry, CacheFlush, IsolationReport, RegisteredEngine
from gateway.state.sqlite.file import transaction
from gateway.state.sqlite.modules import SqliteModules
from gateway.state.sqlite.worker import on_reads, on_worker
from gateway.state.store import AUDIT_KEPT, since
from gateway.state.store_errors import missing_engine

_ENGINE = "SELECT record FROM engines WHERE address = ?"


class SqliteOperation(SqliteModules):
    """The audit log, isolation report, engine registry and flush log in a SQLite file."""

    @on_worker
    def append_audit(self, connection: sqlite3.Connection, entry: AuditEntry) -> None:
        with transaction(connection):
            number = connection.execute(
                "INSERT INTO audit (record) VALUES (?)", (msgspec.json.encode(entry),)
            ).lastrowid
            connection.execute("DELETE FROM audit WHERE id <= ?", ((number or 0) - AUDIT_KEPT,))

    @on_reads
    def list_audit(
        self, connection: sqlite3.Connection, *, limit: int, skip: int = 0
    ) -> list[AuditEntry]:
        found = connection.execute(
            "SELECT record FROM audit ORDER BY id DESC LIMIT ? OFFSET ?", (limit, skip)
        )
        return [msgspec.json.decode(record, type=AuditEntry) for (record,) in found]

    @on_worker
    def keep_isolation_report(
        self, connection: sqlite3.Connection, report: IsolationReport
    ) -> None:
        connection.execute(
            "INSERT OR REPLACE INTO reports (name, record) VALUES ('isolation', ?)",
            (msgspec.json.encode(report),),
        )

    @on_reads
    def isolation_report(self, connection: sqlite3.Connection) -> IsolationReport | None:
        found = connection.execute("SELECT record FROM reports WHERE name = 'isolation'").fetchone()
        return None if found is None else msgspec.json.decode(found[0], type=IsolationReport)

    @on_worker
    def register_engine(self, connection: sqlite3.Connection, engine: RegisteredEngine) -> None:
        with transaction(connection):
            before = connection.execute(_ENGINE, (engine.address,)).fetchone()
            connection.execute(
                "INSERT OR REPLACE INTO engines (address, record) VALUES (?, ?)",
                (engine.address, msgspec.json.encode(since(engine, before and before[0]))),
            )

    @on_worker
    def add_flush(self, connection: sqlite3.Connection, flush: CacheFlush) -> None:
        row = (flush.tenant_id or "", flush.at, msgspec.json.encode(flush))
        with transaction(connection):
            if flush.tenant_id is None:
                connection.execute("DELETE FROM flushes")
            connection.execute(
                "INSERT OR REPLACE INTO flushes (flow, at, record) VALUES (?, ?, ?)", row
            )

    @on_reads
    def flushes(self, connection: sqlite3.Connection) -> list[CacheFlush]:
        found = connection.execute("SELECT record FROM flushes ORDER BY at")
        return [msgspec.json.decode(record, type=CacheFlush) for (record,) in found]

    @on_worker
    def fold_flushes(
        self, connection: sqlite3.Connection, into: CacheFlush, tenant_ids: Sequence[str]
    ) -> None:
        with transaction(connection):
            later = connection.execute(
                "SELECT 1 FROM flushes WHERE flow = '' AND at > ?", (into.at,)
            ).fetchone()
            if later is None:
                connection.executemany(
                    "DELETE FROM flushes WHERE flow = ?", [(one,) for one in tenant_ids]
                )
                connection.execute(
                    "INSERT OR REPLACE INTO flushes (flow, at, record) VALUES ('', ?, ?)",
                    (into.at, msgspec.json.encode(into)),
                )

    @on_worker
    def forget_engine(self, connection: sqlite3.Connection, address: str) -> None:
        statement = "DELETE FROM engines WHERE address = ?"
        if not connection.execute(statement, (address,)).rowcount:
            raise missing_engine()

    @on_reads
    def registered_engines(self, connection: sqlite3.Connection) -> list[RegisteredEngine]:
        found = connection.execute("SELECT record FROM engines ORDER BY address")
        return [msgspec.json.decode(record, type=RegisteredEngine) for (record,) in found]
