"""Each of SQLite's result codes becomes one typed error."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest

from gateway.state.sqlite.file import (
    DatabaseAway,
    DatabaseDamaged,
    DatabaseFault,
    DatabaseFull,
    translated,
)


class FailingCode(sqlite3.OperationalError):
    """An error with one of SQLite's result codes."""

    def __init__(self, code: int) -> None:
        super().__init__("as SQLite says it")
        self.sqlite_errorcode = code


def raised(error: Exception, *, lacks_room: bool = False) -> type[Exception]:
    with pytest.raises(Exception) as caught, translated(lambda: lacks_room):
        raise error
    return caught.type


IOERR_WRITE = sqlite3.SQLITE_IOERR | 3 << 8


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_CORRUPT, DatabaseDamaged),
        (sqlite3.SQLITE_NOTADB, DatabaseDamaged),
        (sqlite3.SQLITE_ERROR, DatabaseDamaged),  # for example an error because of a missing table
        (IOERR_WRITE, DatabaseDamaged),
        (sqlite3.SQLITE_FULL, DatabaseFull),
        (sqlite3.SQLITE_BUSY, DatabaseAway),
        (sqlite3.SQLITE_READONLY, DatabaseAway),
        (sqlite3.SQLITE_CANTOPEN, DatabaseAway),
    ],
)
def test_a_code_has_one_meaning(code: int, kind: type[DatabaseFault]) -> None:
    assert raised(FailingCode(code)) is kind


def test_an_io_error_without_room_is_a_full_disk() -> None:
    assert raised(FailingCode(IOERR_WRITE), lacks_room=True) is DatabaseFull
    assert raised(FailingCode(sqlite3.SQLITE_CORRUPT), lacks_room=True) is DatabaseDamaged


def test_a_record_that_is_none_is_damage() -> None:
    with pytest.raises(DatabaseDamaged), translated(lambda: False):
        msgspec.json.decode(b"{")
    with pytest.raises(DatabaseDamaged), translated(lambda: False):
        b"\xff".decode()


def test_text_that_is_none_is_damage(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "some.sqlite")
    with pytest.raises(DatabaseDamaged), translated(lambda: False):
        connection.execute("SELECT CAST(x'ff' AS TEXT)").fetchone()
    connection.close()


def test_what_the_code_did_wrong_is_no_fault_of_the_file() -> None:
    assert raised(sqlite3.IntegrityError("taken")) is sqlite3.IntegrityError
    assert raised(sqlite3.ProgrammingError("closed")) is sqlite3.ProgrammingError
    assert raised(KeyError()) is KeyError
