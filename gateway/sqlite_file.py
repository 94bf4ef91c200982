"""A SQLite file that several processes open: private, in WAL mode, changed in whole transactions.

Knows: how such a file is opened and what a transaction is. Does not know: what is in it, nor how
much of it a power cut may lose.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gateway.private_file import require_private

WAL_WAIT_S = 10.0


def open_shared(
    path: Path,
    prepare: Callable[[sqlite3.Connection], None],
    *,
    busy_s: float,
    check_same_thread: bool = True,
) -> sqlite3.Connection:
    """Open or make the file (0600), and let `prepare` bring it to its schema.

    A statement waits for other processes' transactions for `busy_s`. Raises FileExposed when
    others may read the file, sqlite3.DatabaseError when it is no database, and what `prepare` does.
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
    """All or nothing. The lock is taken first, so what is read inside stays true."""
    with connection:  # commits, or rolls back whatever is raised, also by the commit
        connection.execute("BEGIN IMMEDIATE")
        yield


def _make_private(path: Path) -> None:
    """Make the file 0600 before SQLite would make it otherwise; -wal and -shm inherit its mode.

    A file that is there is looked at, not opened: closing any descriptor of it would drop the
    locks that another connection of this process holds.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        require_private(path, path.stat().st_mode)


def _enter_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL. SQLite's busy handler does not cover this, and processes start together."""
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
