"""The database file is private and in WAL mode. Its transactions are atomic however they end."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.state.private_file import FileExposed
from gateway.state.sqlite.file import open_shared, transaction

SCHEMA = """
CREATE TABLE IF NOT EXISTS parents (id INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS children
    (parent INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED);
PRAGMA foreign_keys = ON;
"""


def prepare(connection: sqlite3.Connection) -> None:
    connection.executescript(SCHEMA)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.sqlite"


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    connection = open_shared(path, prepare, busy_s=0.0)
    yield connection
    connection.close()


@pytest.fixture
def other(path: Path, connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Open a second connection, as another process would; it never waits for a lock."""
    other = open_shared(path, prepare, busy_s=0.0)
    yield other
    other.close()


def parents(connection: sqlite3.Connection) -> list[int]:
    return [number for (number,) in connection.execute("SELECT id FROM parents ORDER BY id")]


def add(connection: sqlite3.Connection, number: int) -> None:
    connection.execute("INSERT INTO parents VALUES (?)", (number,))


def test_it_is_private_and_in_wal(connection: sqlite3.Connection, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_one_that_others_may_read_is_refused(path: Path) -> None:
    path.touch(0o644)
    path.chmod(0o644)
    with pytest.raises(FileExposed):
        open_shared(path, prepare, busy_s=0.0)


def test_no_connection_is_left_where_preparing_fails(path: Path) -> None:
    opened: list[sqlite3.Connection] = []

    def fail(connection: sqlite3.Connection) -> None:
        opened.append(connection)
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        open_shared(path, fail, busy_s=0.0)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")


def test_a_transaction_is_seen_by_others_when_it_is_whole(
    connection: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    with transaction(connection):
        add(connection, 1)
        add(connection, 2)
        assert parents(other) == []
    assert parents(other) == [1, 2]


def test_nobody_else_changes_what_is_read_inside(
    connection: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    with (
        transaction(connection),
        pytest.raises(sqlite3.OperationalError, match="locked"),
        transaction(other),
    ):
        pass
    with transaction(other):
        add(other, 1)
    assert parents(connection) == [1]


@pytest.mark.parametrize("error", [KeyError(), asyncio.CancelledError(), KeyboardInterrupt()])
def test_whatever_is_raised_nothing_of_it_stays(
    connection: sqlite3.Connection, other: sqlite3.Connection, error: BaseException
) -> None:
    def fail() -> None:
        with transaction(connection):
            add(connection, 1)
            raise error

    with pytest.raises(type(error)):
        fail()
    assert not connection.in_transaction
    with transaction(other):
        add(other, 2)
    assert parents(connection) == [2]


def test_a_commit_that_fails_leaves_no_transaction_open(
    connection: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    def add_an_orphan() -> None:
        with transaction(connection):
            add(connection, 1)
            # SQLite checks this foreign key only at the commit
            connection.execute("INSERT INTO children VALUES (7)")

    with pytest.raises(sqlite3.IntegrityError):
        add_an_orphan()
    assert not connection.in_transaction
    with transaction(other):
        add(other, 2)
    assert parents(connection) == [2]
