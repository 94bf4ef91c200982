"""A SQLite file watched while in use: its faults, and the space reserved in it.

A damaged file refuses every call until a check finds it whole again. A file that was removed,
emptied or exchanged while open also refuses every call, since writes to it would be lost.

The file reserves a megabyte of free pages, and its WAL is as long. Most writes therefore need no
new room on the disk. A write that finds no room takes the ballast (`reserved_room`).
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from gateway.errors import StateDiskFull, StateLost, Unavailable
from gateway.state.faults import Fault, another, damaged, exchanged, gone
from gateway.state.identity import ExpectedState, WrongState, marker_name
from gateway.state.reserved_room import ReservedRoom
from gateway.state.sqlite.file import (
    DatabaseAway,
    DatabaseDamaged,
    DatabaseFault,
    DatabaseFull,
    hold_room,
    is_whole,
    open_shared,
    transaction,
    translated,
    write_back,
)

T = TypeVar("T")

ROOM_BYTES = 1 << 20
# seconds for the check at the start, enough for several hundred MB; the rest of a larger file is
# not checked
START_CHECK_S = 2.0
CHECK_S = 1.0  # seconds for a check while the file is in use
CHECK_PART = 0.02  # the maximum fraction of time for checks
CHECK_EVERY_S = 5.0  # the minimum time between two checks in seconds
RETRY_AFTER_S = 1.0
# The WAL is written back once it has this many pages, so it never outgrows its reserved space.
_WAL_PAGES = 200
_LONG_WAL = 1000


class DatabaseFile:
    """An open SQLite file.

    Only one thread at a time may `run` work on a connection. Any thread may call `look`. `prepare`
    brings the file to its schema, in a transaction. A power cut loses nothing of a `durable` file,
    and of any other file the changes of the last seconds. A file that is not durable can be used on
    an event loop, since almost only `look` syncs it. `fault` is the file's known fault, and `id`
    the id in the file, if known.

    The constructor opens or makes the file (0600), waiting for the disk. A damaged file is opened
    too, and then refuses every call. Raises FileExposed, WrongState, DatabaseFull, DatabaseAway,
    and the errors of `prepare`.
    """

    def __init__(
        self,
        path: Path,
        expected: ExpectedState,
        prepare: Callable[[sqlite3.Connection], None],
        room: ReservedRoom | None = None,
        *,
        busy_s: float,
        durable: bool = True,
        check_every_s: float | None = None,  # None: CHECK_EVERY_S
    ) -> None:
        self.fault: Fault | None = None
        self.id: str | None = None
        self._path = path
        self._expected = expected
        self._bring_to_schema = prepare
        self._busy_s = busy_s
        self._durable = durable
        self._check_every_s = CHECK_EVERY_S if check_every_s is None else check_every_s
        self._room = room or ReservedRoom(path.parent)
        self._has_bad_record = False
        self._checked_at = time.monotonic()
        self._check_took_s = 0.0
        self._connection = self._opened()
        self._inode = _inode(path)

    def run(
        self,
        work: Callable[[sqlite3.Connection], T],
        *,
        on: sqlite3.Connection | None = None,
        may_use_reserve: bool = True,
    ) -> T:
        """Do `work`. On a full disk, do it again in the ballast's space if that is allowed.

        `work` is called with `on`, a reader of the file, or by default with the file's own
        connection. The file's faults become the gateway's errors: StateLost for a damaged or
        missing file, StateDiskFull, or Unavailable.
        """
        fault, connection = self.fault, on or self._connection
        if fault is not None or connection is None:
            raise StateLost((fault or self._damaged()).status)
        try:
            return self._attempt(connection, work, may_use_reserve=may_use_reserve)
        except DatabaseDamaged as error:
            # A fault that SQLite finds may pass, if the disk caused it. A bad record stays bad.
            self._has_bad_record |= not isinstance(error.__cause__, sqlite3.Error)
            self.fault = self._damaged()
            raise StateLost(self.fault.status) from error
        except DatabaseFull as error:
            raise StateDiskFull() from error
        except DatabaseAway as error:
            raise Unavailable(
                "the state cannot be read or written at the moment",
                code="state_unavailable",
                retry_after_s=RETRY_AFTER_S,
            ) from error

    def reader(self) -> sqlite3.Connection | None:
        """Open a new read-only connection, for one thread at a time.

        Returns None if the file is damaged.
        """
        if self._connection is None:
            return None
        connection = self._newcomer(self._busy_s)
        connection.execute("PRAGMA query_only = ON")
        return connection

    async def check(self) -> None:
        """Check that the file exists and is whole, and has its reserved space."""
        await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Check the file as `check` does, waiting for the disk."""
        if self._connection is None:
            return
        with suppress(OSError):  # if this fails, the next look finds the fault
            self.fault = self._moved() or self._unwhole()
            if self.fault is None:
                self._keep_up()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _opened(self) -> sqlite3.Connection | None:
        try:
            try:
                return self._open()
            except DatabaseFull:
                if not self._room.give_up(keep=0):
                    raise
                return self._open()
        except DatabaseDamaged:
            self.fault = self._damaged()
            return None

    def _open(self) -> sqlite3.Connection:
        if self._expected.was_there and _size(self._path) == 0:
            raise WrongState(gone(self._expected.what, self._path.name))
        with translated(self._room.lacks_room):
            connection = open_shared(
                self._path, self._prepare, busy_s=self._busy_s, check_same_thread=not self._durable
            )
            if not is_whole(connection, START_CHECK_S):
                connection.close()
                raise DatabaseDamaged("quick_check found damage")
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
        connection.execute(
            f"PRAGMA wal_autocheckpoint = {_WAL_PAGES if self._durable else _LONG_WAL}"
        )
        with transaction(connection):
            self.id = _identified(connection, self._expected)
            self._bring_to_schema(connection)
        # set here, since it has no effect inside a transaction
        connection.execute("PRAGMA foreign_keys = ON")

    def _attempt(
        self,
        connection: sqlite3.Connection,
        work: Callable[[sqlite3.Connection], T],
        *,
        may_use_reserve: bool,
    ) -> T:
        try:
            return self._try(connection, work)
        except DatabaseFull:
            self._try(connection, write_back)  # afterwards the WAL is written from its start again
        try:
            return self._try(connection, work)
        except DatabaseFull:
            if not may_use_reserve or not self._room.give_up():
                raise
        return self._try(connection, work)

    def _try(self, connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
        with translated(self._room.lacks_room):
            return work(connection)

    def _damaged(self) -> Fault:
        return damaged(self._expected.what, self._path.name)

    def _moved(self) -> Fault | None:
        what, path = self._expected.what, self._path
        if _size(path) == 0:
            return gone(what, path.name)
        if _inode(path) != self._inode:
            return exchanged(what, path.name)
        return None

    def _unwhole(self) -> Fault | None:
        """Check the file on a new connection, since the open connection may have old pages."""
        now = time.monotonic()
        is_due = now - self._checked_at >= max(self._check_every_s, self._check_took_s / CHECK_PART)
        if self._has_bad_record or (self.fault is None and not is_due):
            return self.fault
        try:
            with translated(self._room.lacks_room), closing(self._newcomer()) as connection:
                whole = is_whole(connection, CHECK_S)
                found = _stored_id(connection)
        except (DatabaseAway, DatabaseFull):
            return self.fault
        except DatabaseDamaged:
            whole, found = False, None
        self._checked_at = time.monotonic()
        self._check_took_s = self._checked_at - now
        if not whole:
            return self._damaged()
        if found == self.id:
            return None
        what, path = self._expected.what, self._path
        return another(what, path.name, marker_name(what))

    def _newcomer(self, busy_s: float = 1.0) -> sqlite3.Connection:
        uri = f"file:{quote(str(self._path))}?mode=rw"
        return sqlite3.connect(
            uri, uri=True, timeout=busy_s, isolation_level=None, check_same_thread=False
        )

    def _keep_up(self) -> None:
        """Make room in the file and in its WAL, and sync the commits that `run` did not sync."""
        wal = self._path.with_name(self._path.name + "-wal")
        holds_room = _size(wal) >= ROOM_BYTES or self._room.fault is not None
        if holds_room and self._durable:
            return
        try:
            with translated(self._room.lacks_room), closing(self._newcomer()) as connection:
                connection.execute("PRAGMA synchronous = NORMAL")
                if not holds_room:
                    hold_room(connection, ROOM_BYTES)
                write_back(connection)
        except DatabaseFault:
            return  # the next look finds the fault


def _identified(connection: sqlite3.Connection, expected: ExpectedState) -> str:
    """Return the file's id, after giving an id to a new file. Raises WrongState."""
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    connection.execute("CREATE TABLE IF NOT EXISTS identity (id TEXT NOT NULL)")
    found = _stored_id(connection)
    settled = expected.settled(found, is_empty=tables == 0)
    if found is None:
        connection.execute("INSERT INTO identity VALUES (?)", (settled,))
    return settled


def _stored_id(connection: sqlite3.Connection) -> str | None:
    row = connection.execute("SELECT id FROM identity").fetchone()
    return None if row is None else str(row[0])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
