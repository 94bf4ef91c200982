"""The threads that work on one SQLite file, so that the event loop never waits for the disk.

    run       changes, and reads by the operator; on the file's own connection
    look_up   single records by an index, such as the caller's key; every request waits for one
    read      reads that may take long: reports, stored responses, lists

`look_up` and `read` have separate read-only connections, which show every change that was made
before a read begins. Tenants' work is done in turns (`in_turn`). On each thread a tenant therefore
waits for at most one piece of work of every other tenant.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from gateway.processes.tenant_turns import TenantTurns, seen_out
from gateway.state.sqlite.database import DatabaseFile

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W", bound="SqliteWorker")
Work = Callable[[sqlite3.Connection], T]


class _Reader:
    def __init__(self, file: DatabaseFile, name: str) -> None:
        self._thread = _one_thread(name)
        self._connection = file.reader()
        self._run = partial(file.run, on=self._connection)

    async def run(self, work: Work[T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, partial(self._run, work))

    async def close(self) -> None:
        if self._connection is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown()


class SqliteWorker:
    """The worker threads of `file`, each with one piece of work at a time.

    Used in one event loop.
    """

    def __init__(self, file: DatabaseFile) -> None:
        self.file = file
        self._worker = _one_thread("ratoon-sqlite")
        self._lookups = _Reader(file, "ratoon-sqlite-lookups")
        self._reads = _Reader(file, "ratoon-sqlite-reads")
        self._turns = TenantTurns()

    async def run(self, work: Work[T]) -> T:
        """Run `work` on the file's main connection; raise Unavailable."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, self.file.run, work)

    async def run_in_room(self, work: Work[T]) -> T:
        """Run dispensable `work`, which may not use the disk's reserved room; raise Unavailable."""
        loop = asyncio.get_running_loop()
        run = partial(self.file.run, work, may_use_reserve=False)
        return await loop.run_in_executor(self._worker, run)

    async def look_up(self, work: Work[T]) -> T:
        """Run `work` that looks up single records by an index; raise Unavailable."""
        return await self._lookups.run(work)

    async def read(self, work: Work[T]) -> T:
        """Run `work` that reads much, however long it takes; raise Unavailable."""
        return await self._reads.run(work)

    async def in_turn(
        self, tenant_id: str | None, run: Callable[[Work[T]], Awaitable[T]], work: Work[T]
    ) -> T:
        """Run `work` with `run` in the tenant's turn, which lasts until the work has ended."""
        async with self._turns.of(tenant_id):
            return await seen_out(run(work))

    async def close(self) -> None:
        """Close the file after the running statements."""
        await self._lookups.close()
        await self._reads.close()
        await asyncio.get_running_loop().run_in_executor(self._worker, self.file.close)
        self._worker.shutdown()


def on_worker(
    work: Callable[Concatenate[W, sqlite3.Connection, P], T],
) -> Callable[Concatenate[W, P], Coroutine[Any, Any, T]]:
    """Make a coroutine function that runs `work` on the thread that changes the file."""
    return _by(SqliteWorker.run, work)


def on_lookups(
    work: Callable[Concatenate[W, sqlite3.Connection, P], T],
) -> Callable[Concatenate[W, P], Coroutine[Any, Any, T]]:
    """Make a coroutine function that runs `work` on the thread for lookups."""
    return _by(SqliteWorker.look_up, work)


def on_reads(
    work: Callable[Concatenate[W, sqlite3.Connection, P], T],
) -> Callable[Concatenate[W, P], Coroutine[Any, Any, T]]:
    """Make a coroutine function that runs `work` on the thread for long reads."""
    return _by(SqliteWorker.read, work)


def _by(
    run_on: Callable[[Any, Work[Any]], Awaitable[Any]],
    work: Callable[Concatenate[W, sqlite3.Connection, P], T],
) -> Callable[Concatenate[W, P], Coroutine[Any, Any, T]]:
    @wraps(work)
    async def run(store: W, /, *args: P.args, **kwargs: P.kwargs) -> T:
        found: T = await run_on(store, lambda connection: work(store, connection, *args, **kwargs))
        return found

    return run


def _one_thread(name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
