"""Limits of one machine in a SQLite file: exact over all workers of its gateway.

A decision is one short transaction on one row, on the event loop itself: tens of microseconds,
less than a hop to another thread and back. Nothing waits for the disk: the file is not synced, so
a power cut may lose the last moments of a budget's spending; a file that it left damaged is set
aside and a new one is begun. A restart or a worker that dies loses nothing.

Knows: SQL, accounts as bytes. Does not know: what is decided about one (`account`).
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gateway.limits.account import Account, Moment
from gateway.limits.clocks import Clocks
from gateway.limits.limiter import Amount, Demand, Hold, LimiterDown, Verdict
from gateway.sqlite_file import open_shared, transaction

_LOG = logging.getLogger(__name__)
_BUSY_S = 0.25  # another worker's transaction takes a thousandth of it
_SCHEMA = "CREATE TABLE IF NOT EXISTS accounts (tenant TEXT PRIMARY KEY NOT NULL, account BLOB)"

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Account)


class SqliteLimiter:
    """`gateway.limits.limiter.Limiter` in a SQLite file. LimiterDown when it cannot be written.

    The constructor opens or makes the file (0600). Raises FileExposed when others may read it.
    """

    def __init__(self, path: Path, clocks: Callable[[], Moment] | None = None) -> None:
        self._clocks = clocks or Clocks()
        self._connection = _open(path)

    async def reserve(self, demand: Demand) -> Verdict:
        """Take everything or nothing."""
        with self._account(demand.tenant_id) as account:
            return account.reserve(demand, self._clocks())

    async def settle(self, hold: Hold, used: Amount) -> None:
        """Give the hold back and count what was used."""
        with self._account(hold.demand.tenant_id) as account:
            account.settle(hold, used, self._clocks())

    async def renew(self, holds: Sequence[Hold]) -> None:
        """Let holds last on."""
        by_tenant: dict[str, list[Hold]] = {}
        for hold in holds:
            by_tenant.setdefault(hold.demand.tenant_id, []).append(hold)
        for tenant_id, of_tenant in by_tenant.items():
            with self._account(tenant_id) as account:
                for hold in of_tenant:
                    account.renew(hold, self._clocks())

    async def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def _account(self, tenant_id: str) -> Iterator[Account]:
        """A tenant's account, to be changed by nobody else meanwhile."""
        try:
            with transaction(self._connection):
                account = self._read(tenant_id)
                yield account
                self._write(tenant_id, account)
        except sqlite3.Error as error:
            raise LimiterDown(str(error)) from error

    def _read(self, tenant_id: str) -> Account:
        row = self._connection.execute(
            "SELECT account FROM accounts WHERE tenant = ?", (tenant_id,)
        ).fetchone()
        if row is None:
            return Account()
        try:
            return _DECODER.decode(row[0])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LimiterDown("an account in the file of limits cannot be read") from error

    def _write(self, tenant_id: str, account: Account) -> None:
        self._connection.execute(
            "INSERT INTO accounts VALUES (?, ?)"
            " ON CONFLICT (tenant) DO UPDATE SET account = excluded.account",
            (tenant_id, _ENCODER.encode(account)),
        )


def _open(path: Path) -> sqlite3.Connection:
    try:
        return _connect(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):  # it cannot be opened: no damage
            raise
        _LOG.error("the file of limits is damaged: it was set aside, and a new one is begun")
        os.replace(path, path.with_suffix(".damaged"))
        return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    return open_shared(path, _prepare, busy_s=_BUSY_S)


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(_SCHEMA)
