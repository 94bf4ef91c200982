from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.errors import Conflict, NotFound, StateLost, Unavailable
from gateway.state.private_file import FileExposed
from gateway.state.records import (
    AuditEntry,
    IsolationReport,
    RegisteredEngine,
    ResponseRoom,
    Tenant,
)
from gateway.state.sqlite.schema import SchemaTooNew
from gateway.state.sqlite.store import SqliteStore
from gateway.state.usage_records import Counters, UsageRow
from tests.gateway.state.contract import (
    StoreContract,
    a_group,
    a_key,
    a_response,
    a_row,
    a_tenant,
    kept,
    room_for,
)

ROOT = Path(__file__).parents[4]

WRITER = """
import asyncio, os, sys
from pathlib import Path
from gateway.state.records import Tenant
from gateway.state.sqlite.store import SqliteStore

async def main(path, who, count):
    store = SqliteStore(Path(path))
    for i in range(int(count)):
        await store.create(Tenant.new(f"{who}-{i}", created_at=float(i)))
    sys.stdout.write("written")
    sys.stdout.flush()
    os._exit(9)  # no close, as if it had been killed

asyncio.run(main(*sys.argv[1:]))
"""


def start_writer(path: Path, who: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), who, str(count)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    await store.close()


class TestSqliteStore(StoreContract):
    """The contract of stores, on a real file."""


async def test_what_was_stored_is_there_after_a_restart(path: Path) -> None:
    first = SqliteStore(path)
    await first.create(a_tenant())
    await first.create(a_key(a_tenant()))
    await first.close()
    second = SqliteStore(path)
    assert await second.find_by_digest(a_key(a_tenant()).digest) == (a_key(a_tenant()), a_tenant())
    await second.close()


async def test_only_the_owner_may_read_any_file_of_it(path: Path) -> None:
    before = os.umask(0)
    try:
        store = SqliteStore(path)
        await store.create(a_tenant())
    finally:
        os.umask(before)
    files = sorted(file.name for file in path.parent.iterdir())
    assert files == ["state.sqlite", "state.sqlite-shm", "state.sqlite-wal"]
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    await store.close()


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o602])
async def test_a_file_open_to_others_is_refused(path: Path, mode: int) -> None:
    await SqliteStore(path).close()
    path.chmod(mode)
    with pytest.raises(FileExposed, match="chmod 600"):
        SqliteStore(path)
    path.chmod(0o600)
    await SqliteStore(path).close()


@pytest.mark.parametrize("version", [1, 99])  # no release had these versions
async def test_an_unknown_schema_is_refused_and_left_alone(path: Path, version: int) -> None:
    await SqliteStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with pytest.raises(SchemaTooNew, match=f"version {version},"):
        SqliteStore(path)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (version,)
    connection.close()


async def test_the_schema_says_its_version_and_keeps_a_wal(path: Path) -> None:
    await SqliteStore(path).close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (7,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


async def test_a_file_from_before_stored_responses_gets_them(path: Path) -> None:
    await SqliteStore(path).close()
    connection = sqlite3.connect(path)
    with connection:
        for table in (
            "responses",
            "response_bytes",
            "reports",
            "engines",
            "flushes",
            "module_schemas",
        ):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    for _ in range(2):
        store = SqliteStore(path)
        assert await kept(store, a_tenant()) == []
        await store.create(a_tenant())
        await store.keep_response(a_response(a_tenant()), room_for(1))
        assert await kept(store, a_tenant()) == [1]
        await store.delete(Tenant, a_tenant().id)
        await store.close()


async def test_a_file_from_before_reports_gets_them_and_keeps_the_rest(path: Path) -> None:
    store = SqliteStore(path)
    await store.create(a_tenant())
    await store.close()
    connection = sqlite3.connect(path)
    with connection:
        for table in ("reports", "engines", "flushes", "module_schemas"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("PRAGMA user_version = 3")
    connection.close()
    store = SqliteStore(path)
    assert await store.isolation_report() is None
    await store.keep_isolation_report(
        IsolationReport(at=1.0, verdict="passed", samples=9, report="# Fine")
    )
    assert await store.every(Tenant) == [a_tenant()]
    await store.close()


async def test_a_file_from_before_engines_gets_them_and_keeps_the_rest(path: Path) -> None:
    store = SqliteStore(path)
    report = IsolationReport(at=1.0, verdict="passed", samples=9, report="# Fine")
    await store.keep_isolation_report(report)
    await store.close()
    connection = sqlite3.connect(path)
    with connection:
        for table in ("engines", "flushes", "module_schemas"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("PRAGMA user_version = 4")
    connection.close()
    store = SqliteStore(path)
    engine = RegisteredEngine(address="tcp://gpu1:7300", added_at=1.0)
    await store.register_engine(engine)
    assert await store.registered_engines() == [engine]
    assert await store.flushes() == []
    assert await store.isolation_report() == report
    await store.close()


async def test_what_a_tenant_stored_is_no_more_in_the_file_when_it_is_gone(path: Path) -> None:
    store = SqliteStore(path)
    await store.create(a_tenant())
    response = a_response(a_tenant(), text="canary-5f0c " * 1000)
    room = ResponseRoom(of_one=1 << 20, of_tenant=1 << 20, of_all=1 << 20)
    assert await store.keep_response(response, room)
    await store.run(lambda connection: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)"))
    assert b"canary-5f0c" in path.read_bytes()  # positive control
    await store.delete(Tenant, a_tenant().id)
    await store.close()
    assert not any(b"canary-5f0c" in file.read_bytes() for file in path.parent.iterdir())


async def test_usage_of_a_file_from_before_a_counter_has_none_of_it(path: Path) -> None:
    await SqliteStore(path).close()
    connection = sqlite3.connect(path)
    older = {"requests": 3, "computed_tokens": 7, "cached_tokens": 5, "generated_tokens": 2}
    with connection:
        connection.executemany(
            "INSERT INTO usage VALUES ('2026-01-31', 'tn_a', 'key_1', ?, ?)", older.items()
        )
    connection.close()
    store = SqliteStore(path)
    before = Counters(**older)
    assert [row.counters for row in await store.usage("2026-01-01", "2026-12-31")] == [before]
    await store.add_usage([a_row(cache_written_tokens=64, cache_read_tokens=16)], batch="1")
    [row] = await store.usage("2026-01-01", "2026-12-31")
    assert row.counters == before.plus(Counters(cache_written_tokens=64, cache_read_tokens=16))
    await store.close()


async def test_a_schema_that_breaks_off_leaves_the_file_as_it_was(path: Path) -> None:
    path.touch(0o600)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE audit (mine TEXT)")
    broken = SqliteStore(path)
    with pytest.raises(StateLost):
        await broken.every(Tenant)
    await broken.close()
    assert connection.execute("PRAGMA user_version").fetchone() == (0,)
    assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("audit",)]
    connection.execute("DROP TABLE audit")
    connection.commit()
    connection.close()
    store = SqliteStore(path)
    assert await store.every(Tenant) == []
    await store.close()


async def test_a_record_with_a_field_of_a_later_release_can_be_read(
    path: Path, store: SqliteStore
) -> None:
    await store.create(a_tenant())
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE tenants SET record = json_set(CAST(record AS TEXT), '$.later', json('[1]'))"
        )
    connection.close()
    assert await store.get(Tenant, a_tenant().id) == a_tenant()


async def test_the_oldest_audit_entries_go(path: Path, store: SqliteStore) -> None:
    entry = AuditEntry(time=1.0, actor="op", action="a", target="t")
    await store.append_audit(entry)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE sqlite_sequence SET seq = 100000 WHERE name = 'audit'")
    connection.close()
    await store.append_audit(entry)
    assert await store.list_audit(limit=10) == [entry]


async def test_a_file_that_stays_locked_is_unavailable(path: Path, store: SqliteStore) -> None:
    with sqlite3.connect(path, isolation_level=None) as holder:
        await store.every(Tenant)
        store.file.run(lambda connection: connection.execute("PRAGMA busy_timeout = 1"))
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Unavailable) as refusal:
            await store.create(a_tenant())
        assert refusal.value.retry_after_s is not None
        holder.execute("ROLLBACK")
    holder.close()
    await store.create(a_tenant())


async def test_a_start_that_broke_off_before_the_schema_heals(path: Path) -> None:
    path.touch(0o600)
    store = SqliteStore(path)
    await store.create(a_tenant())
    assert await store.every(Tenant) == [a_tenant()]
    await store.close()


async def test_a_file_that_is_no_database_is_damaged_and_left_alone(path: Path) -> None:
    path.write_bytes(b"no database at all" * 100)
    path.chmod(0o600)
    store = SqliteStore(path)
    await store.file.check()
    assert store.file.fault is not None
    assert store.file.fault.status == "state_damaged"
    with pytest.raises(StateLost):
        await store.every(Tenant)
    await store.close()
    assert path.read_bytes() == b"no database at all" * 100


async def test_two_stores_on_one_file_see_each_other(path: Path, store: SqliteStore) -> None:
    other = SqliteStore(path)
    await store.create(a_tenant())
    assert await other.get(Tenant, a_tenant().id) == a_tenant()
    with pytest.raises(Conflict):
        await other.create(Tenant(id="tn_2", name="acme", created_at=2.0))
    await other.delete(Tenant, a_tenant().id)
    with pytest.raises(NotFound):
        await store.get(Tenant, a_tenant().id)
    await other.close()
    await store.create(a_tenant())  # closing the other store released no lock of this store


async def test_processes_open_and_write_one_new_file_at_once(path: Path) -> None:
    writers = [start_writer(path, f"w{n}", 20) for n in range(4)]
    for writer in writers:
        out, err = writer.communicate(timeout=60)
        assert (out, err, writer.returncode) == ("written", "", 9)
    store = SqliteStore(path)  # the store was never closed, but committed data is there
    names = {tenant.name for tenant in await store.every(Tenant)}
    assert names == {f"w{n}-{i}" for n in range(4) for i in range(20)}
    await store.close()


async def test_a_writer_waits_for_another_process_to_commit(path: Path, store: SqliteStore) -> None:
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    waiting = asyncio.ensure_future(store.create(a_tenant()))
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done  # this line runs only if the event loop is not blocked
    holder.execute("COMMIT")
    holder.close()
    await waiting
    assert await store.every(Tenant) == [a_tenant()]


async def test_opening_waits_for_a_process_that_has_not_reached_wal_yet(path: Path) -> None:
    path.touch(0o600)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    opening = asyncio.ensure_future(asyncio.to_thread(SqliteStore, path))
    done, _ = await asyncio.wait({opening}, timeout=0.05)
    assert not done
    holder.execute("COMMIT")
    holder.close()
    store = await opening
    assert await store.every(Tenant) == []
    await store.close()


async def test_statements_of_a_kind_run_on_one_thread_that_is_not_the_loop_s(path: Path) -> None:
    before = set(threading.enumerate())
    store = SqliteStore(path)
    await asyncio.gather(*(store.every(Tenant) for _ in range(20)))
    await asyncio.gather(*(store.find_by_digest(bytes(32)) for _ in range(20)))
    await asyncio.gather(*(store.drop_expired_responses(now=0.0) for _ in range(20)))
    new = set(threading.enumerate()) - before
    names = sorted(thread.name.split("_")[0] for thread in new)
    assert names == ["ratoon-sqlite", "ratoon-sqlite-lookups", "ratoon-sqlite-reads"]
    await store.close()
    assert not any(thread.is_alive() for thread in new)


async def test_a_key_is_looked_up_while_reads_and_changes_take_long(store: SqliteStore) -> None:
    tenant = a_tenant()
    key = a_key(tenant)
    await store.create(tenant)
    await store.create(key)
    go_on = threading.Event()
    long_ones = [
        asyncio.create_task(run(lambda _: go_on.wait())) for run in (store.read, store.run)
    ]
    behind = [asyncio.create_task(wait) for wait in (store.every(Tenant), store.create(a_group()))]
    assert await store.find_by_digest(key.digest) == (key, tenant)
    assert await store.get(Tenant, tenant.id) == tenant
    assert not any(task.done() for task in behind), "the control: these wait"
    go_on.set()
    await asyncio.gather(*long_ones, *behind)


async def test_of_a_tenant_one_read_waits_on_the_thread_at_a_time(store: SqliteStore) -> None:
    go_on, read = threading.Event(), list[str]()
    held = asyncio.create_task(store.in_turn("tn_a", store.read, lambda _: go_on.wait()))

    async def reports(tenant_id: str) -> None:
        await store.usage("2026-01-01", "2026-01-02", tenant_id=tenant_id)
        read.append(tenant_id)

    waiting = [asyncio.create_task(reports(name)) for name in ("tn_a", "tn_a", "tn_a", "tn_b")]
    await asyncio.sleep(0)
    gone = waiting.pop(1)
    gone.cancel()
    go_on.set()
    await asyncio.gather(held, *waiting)
    assert read[0] == "tn_b"
    assert read[1:] == ["tn_a", "tn_a"]


async def test_nothing_is_changed_where_keys_are_looked_up(store: SqliteStore) -> None:
    for run in (store.look_up, store.read):
        with pytest.raises(Unavailable):
            await run(lambda connection: connection.execute("DELETE FROM audit"))
    await store.run(lambda connection: connection.execute("DELETE FROM audit"))  # positive control


async def _steps(store: SqliteStore, tenant_id: str | None) -> int:
    """Count SQLite's virtual-machine steps for a year's report, in hundreds."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    await store.read(lambda connection: connection.set_progress_handler(count, 100))
    await store.usage("2025-01-01", "2025-12-31", tenant_id=tenant_id)
    await store.read(lambda connection: connection.set_progress_handler(None, 0))
    return steps


async def test_a_report_costs_by_what_is_its_own(store: SqliteStore) -> None:
    before = await _steps(store, "tn_a"), await _steps(store, None)
    days = [f"2025-{month:02}-{day:02}" for month in range(1, 13) for day in range(1, 29)]
    rows = [
        UsageRow(tenant_id=f"tn_b{n}", key_id="key", day=day, counters=Counters(requests=1))
        for day in days
        for n in range(10)
    ]
    await store.add_usage(rows, batch="1")
    after = await _steps(store, "tn_a"), await _steps(store, None)
    assert after[0] <= before[0] + len(days) // 10, "some steps a day, however many tenants"
    assert after[1] > before[1] + len(rows) // 10, "the control: a report on all"
