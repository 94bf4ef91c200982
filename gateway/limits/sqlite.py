"""Limits of one machine in a SQLite file: exact over all workers of its gateway.

A decision is one short transaction on one row, on the event loop itself: tens of microseconds,
less than a hop to another thread and back. Nearly nothing waits for the disk: the file is synced
once a second by a thread, so a power cut may lose the last moments of a budget's spending, and
leaves the file whole. A restart or a worker that dies loses nothing. A damaged file is down, and
stays so: no budget begins again before the operator says so.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from gateway.limits.memory import AccountLimiter
from gateway.limits.token_bucket import Account, Moment
from gateway.state.identity import ExpectedState
from gateway.state.reserved_room import ReservedRoom
from gateway.state.sqlite.database import DatabaseFile
from gateway.state.sqlite.file import transaction

T = TypeVar("T")

_BUSY_S = 0.25  # another worker's transaction takes a thousandth of it
_SCHEMA = "CREATE TABLE IF NOT EXISTS accounts (tenant TEXT PRIMARY KEY NOT NULL, account BLOB)"

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Account)


class SqliteLimiter(AccountLimiter):
    """A limiter in a SQLite file.

    The constructor opens or makes the file (0600). Raises FileExposed when others may read it,
    WrongState, or a DatabaseFault.
    """

    def __init__(
        self,
        path: Path,
        clocks: Callable[[], Moment] | None = None,
        expected: ExpectedState | None = None,
        room: ReservedRoom | None = None,
    ) -> None:
        super().__init__(clocks)
        expected = expected or ExpectedState("limits", path.name)
        self.file = DatabaseFile(path, expected, _prepare, room, busy_s=_BUSY_S, durable=False)

    async def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _change(self, tenant_id: str, change: Callable[[Account], T]) -> T:
        def work(connection: sqlite3.Connection) -> T:
            with transaction(connection):
                account = _read(connection, tenant_id)
                result = change(account)
                _write(connection, tenant_id, account)
            return result

        return self.file.run(work)


def _read(connection: sqlite3.Connection, tenant_id: str) -> Account:
    row = connection.execute(
        "SELECT account FROM accounts WHERE tenant = ?", (tenant_id,)
    ).fetchone()
    return Account() if row is None else _DECODER.decode(row[0])


def _write(connection: sqlite3.Connection, tenant_id: str, account: Account) -> None:
    connection.execute(
        "INSERT INTO accounts VALUES (?, ?)"
        " ON CONFLICT (tenant) DO UPDATE SET account = excluded.account",
        (tenant_id, _ENCODER.encode(account)),
    )


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute(_SCHEMA)
