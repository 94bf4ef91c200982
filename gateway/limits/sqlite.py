"""The limits of one machine in a SQLite file: exact over all workers of its gateway.

    accounts   a row for each tenant, with all its sums in one value
    holds      a row for each running request, with an index by the time of its lapse

A decision is one short transaction on the event loop itself. The transaction touches a few rows,
however many requests run, and takes less time than a switch to another thread. While another worker
writes, the loop continues, and the transaction is tried again for `_PATIENCE_S`. Nearly nothing
waits for the disk. A thread syncs the file once a second. A power cut may therefore lose the last
moments of a budget's spending, but leaves the file whole. A restart or a worker that dies loses
nothing. A damaged file refuses every decision until the operator replaces it, so no budget restarts
from zero unnoticed.

A charge that cannot be written is owed, and is written before the next change.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec

from gateway.errors import StateDiskFull, StateLost, Unavailable
from gateway.limits.held_rows import HeldRows, add_rows
from gateway.limits.holds import Held
from gateway.limits.limiter import Amount, Hold
from gateway.limits.memory import AccountLimiter
from gateway.limits.token_bucket import Account, Moment, Sums
from gateway.limits.unpaid import Unpaid, uncounted
from gateway.state.identity import ExpectedState
from gateway.state.reserved_room import ReservedRoom
from gateway.state.sqlite.database import DatabaseFile
from gateway.state.sqlite.file import transaction

T = TypeVar("T")

_OPENING_S = 5.0  # seconds to wait, at the opening, for other workers' transactions to end
_PATIENCE_S = 1.0
_RETRY_S = 0.002  # seconds between two tries; another worker's transaction takes a tenth of this
_PAID_AT_ONCE = 100
_SCHEMA = "CREATE TABLE IF NOT EXISTS accounts (tenant TEXT PRIMARY KEY NOT NULL, account BLOB)"

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Sums)


class SqliteLimiter(AccountLimiter):
    """A limiter in a SQLite file.

    The constructor opens or makes the file (0600). Raises FileExposed if others may read it,
    WrongState, or a DatabaseFault.
    """

    def __init__(
        self,
        path: Path,
        clocks: Callable[[], Moment] | None = None,
        expected: ExpectedState | None = None,
        room: ReservedRoom | None = None,
        on_lost: Callable[[], None] = uncounted,
    ) -> None:
        super().__init__(clocks)
        expected = expected or ExpectedState("limits", path.name)
        self.file = DatabaseFile(path, expected, _prepare, room, busy_s=_OPENING_S, durable=False)
        with suppress(StateLost):
            self.file.run(lambda connection: connection.execute("PRAGMA busy_timeout = 0"))
        self._turn = asyncio.Lock()
        self._owed = Unpaid[tuple[Hold, Amount]](on_lost=on_lost)

    async def charge(self, hold: Hold, used: Amount) -> None:
        """Release the hold and charge the tokens and cost that were used.

        If the file cannot be written now, do both later.
        """
        self._owed.append((hold, used))
        await self._pay()

    async def renew(self, holds: Sequence[Hold]) -> None:
        await self._pay()
        await super().renew(holds)

    async def close(self) -> None:
        """Write the owed charges and close the file."""
        await self._pay()
        self.file.close()

    async def _change(self, tenant_id: str, change: Callable[[Account], T]) -> T:
        return await self._write(lambda connection: _changed(connection, tenant_id, change))

    async def _pay(self) -> None:
        with suppress(Unavailable):
            while self._owed:
                await self._write(lambda _: None)

    async def _write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Write the owed charges, then change the file in one transaction.

        Other tasks wait meanwhile.
        """
        until = time.monotonic() + _PATIENCE_S
        async with self._turn:
            while True:
                try:
                    return self.file.run(lambda connection: self._transact(connection, change))
                except (StateLost, StateDiskFull):
                    raise
                except Unavailable:
                    if time.monotonic() >= until:
                        raise
                await asyncio.sleep(_RETRY_S)

    def _transact(
        self, connection: sqlite3.Connection, change: Callable[[sqlite3.Connection], T]
    ) -> T:
        owed = list(islice(self._owed, _PAID_AT_ONCE))
        with transaction(connection):
            for hold, used in owed:
                self._charge(connection, hold, used)
            result = change(connection)
        for _ in owed:
            self._owed.popleft()
        return result

    def _charge(self, connection: sqlite3.Connection, hold: Hold, used: Amount) -> None:
        moment = self._clocks()
        _changed(connection, hold.demand.tenant_id, lambda a: a.charge(hold, used, moment))


def _changed(connection: sqlite3.Connection, tenant_id: str, change: Callable[[Account], T]) -> T:
    row = connection.execute(
        "SELECT account FROM accounts WHERE tenant = ?", (tenant_id,)
    ).fetchone()
    sums = Sums() if row is None else _DECODER.decode(row[0])
    account = Account(**msgspec.structs.asdict(sums), holds=HeldRows(connection, tenant_id))
    result = change(account)
    _store(connection, tenant_id, account)
    return result


def _store(connection: sqlite3.Connection, tenant_id: str, sums: Sums) -> None:
    names = Sums.__struct_fields__
    connection.execute(
        "INSERT INTO accounts VALUES (?, ?)"
        " ON CONFLICT (tenant) DO UPDATE SET account = excluded.account",
        (tenant_id, _ENCODER.encode({name: getattr(sums, name) for name in names})),
    )


class _WithHolds(Sums):
    """An account as older database files store it: the account's row also contains its holds."""

    holds: dict[str, Held] = msgspec.field(default_factory=dict)


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute(_SCHEMA)
    if not add_rows(connection):
        return
    decoder = msgspec.msgpack.Decoder(_WithHolds)
    for tenant_id, stored in connection.execute("SELECT tenant, account FROM accounts").fetchall():
        account = decoder.decode(stored)
        rows = HeldRows(connection, tenant_id)
        for request_id, held in account.holds.items():
            rows.put(request_id, held)
        account.running = len(account.holds)
        _store(connection, tenant_id, account)
