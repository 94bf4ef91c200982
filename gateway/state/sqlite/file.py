"""A SQLite file that several processes open: private, in WAL mode, changed in transactions.

SQLite's errors are raised as:

DatabaseFault
 |- DatabaseDamaged   a malformed or unreadable file, no database, or a malformed record
 |- DatabaseFull      no room for a write
 `- DatabaseAway      a file locked for too long, read-only, or impossible to open
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from gateway.state.private_file import require_private

WAL_WAIT_S = 10.0
_OPCODES = 20_000  # number of SQLite's opcodes between two looks at the clock
_AWAY = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
}


class DatabaseFault(Exception):
    """The error of a file that SQLite could not read or write. The message is SQLite's."""


class DatabaseDamaged(DatabaseFault):
    """The error of a file that is unreadable, or has other content than was written."""


class DatabaseFull(DatabaseFault):
    """The error of a write without room."""


class DatabaseAway(DatabaseFault):
    """The error of a file that cannot be used now."""


@contextmanager
def translated(lacks_room: Callable[[], bool]) -> Iterator[None]:
    """Raise SQLite's errors in this context as a DatabaseFault.

    `lacks_room` is called if SQLite's error code may mean a full or a broken disk. A violated
    constraint and a closed connection are no faults of the file and are raised unchanged.
    """
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise
    except sqlite3.DatabaseError as error:
        raise _kind(error, lacks_room)(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DatabaseDamaged("a record cannot be read") from error


def _kind(error: sqlite3.DatabaseError, lacks_room: Callable[[], bool]) -> type[DatabaseFault]:
    # Text that is not UTF-8 has no error code, because Python raises the error.
    primary = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if primary == sqlite3.SQLITE_FULL:
        return DatabaseFull
    if primary in _AWAY:
        return DatabaseAway
    if primary == sqlite3.SQLITE_IOERR and lacks_room():
        return DatabaseFull
    return DatabaseDamaged


def open_shared(
    path: Path,
    prepare: Callable[[sqlite3.Connection], None],
    *,
    busy_s: float,
    check_same_thread: bool = True,
) -> sqlite3.Connection:
    """Open or create the file (0600), and let `prepare` bring it to its schema.

    A statement waits for other processes' transactions for `busy_s`. Raises FileExposed if others
    may read the file, sqlite3.DatabaseError if it is no database, and the errors of `prepare`.
    """
    _make_private(path)
    connection = sqlite3.connect(
        path, timeout=busy_s, isolation_level=None, check_same_thread=check_same_thread
    )
    with ExitStack() as on_failure:
        on_failure.callback(connection.close)
        _enter_wal(connection)
        prepare(connection)
        on_failure.pop_all()
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Make a transaction: all or nothing.

    The lock is taken first, so values read inside the transaction stay true until its end.
    """
    with connection:  # commits, or rolls back on any error, even of the commit
        connection.execute("BEGIN IMMEDIATE")
        yield


def hold_room(connection: sqlite3.Connection, size: int) -> None:
    """Write `size` bytes and free them, so that these pages stay free in the file and the WAL."""
    with transaction(connection):
        connection.execute("DROP TABLE IF EXISTS room")
        connection.execute("CREATE TABLE room (bytes BLOB)")
        connection.execute("INSERT INTO room VALUES (zeroblob(?))", (size,))
    with transaction(connection):
        connection.execute("DROP TABLE IF EXISTS room")


def write_back(connection: sqlite3.Connection) -> None:
    """Copy the WAL into the file, so that the WAL can begin again."""
    try:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
            raise


def is_whole(connection: sqlite3.Connection, within_s: float) -> bool:
    """Return whether SQLite's check finds no fault in the time `within_s`.

    The check reads only a part of a large file in this time.
    """
    deadline = time.monotonic() + within_s
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _OPCODES)
    try:
        found: tuple[str] = connection.execute("PRAGMA quick_check(1)").fetchone()
        return found == ("ok",)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            return True
        raise
    finally:
        connection.set_progress_handler(None, 0)


def _make_private(path: Path) -> None:
    """Create the file with mode 0600, before SQLite would create it with another mode.

    The files -wal and -shm inherit the mode. An existing file is not opened, only its mode is read.
    Closing any descriptor of the file would drop the locks of this process's other connections.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        require_private(path, path.stat().st_mode)


def _enter_wal(connection: sqlite3.Connection) -> None:
    """Switch the file to WAL. Retry, since SQLite's busy handler does not cover this."""
    deadline = time.monotonic() + WAL_WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
