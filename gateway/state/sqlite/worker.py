"""A thread that owns the connection to one SQLite file: the event loop never waits for the disk.

Knows: where work on the file runs. Does not know: what is in the file.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from gateway.state.sqlite.database import DatabaseFile

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W", bound="SqliteWorker")


class SqliteWorker:
    """Work on `file`, one piece after the other. Call it from any task of one event loop."""

    def __init__(self, file: DatabaseFile) -> None:
        self.file = file
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ratoon-sqlite")

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` gives on the thread; raises Unavailable."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, self.file.run, work)

    async def run_in_room(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The same, of what can be left: it is given none of the disk's reserved room."""
        loop = asyncio.get_running_loop()
        run = partial(self.file.run, work, may_use_reserve=False)
        return await loop.run_in_executor(self._worker, run)

    async def close(self) -> None:
        """Close the file after the statements under way."""
        await asyncio.get_running_loop().run_in_executor(self._worker, self.file.close)
        self._worker.shutdown()


def on_worker(
    work: Callable[Concatenate[W, sqlite3.Connection, P], T],
) -> Callable[Concatenate[W, P], Coroutine[Any, Any, T]]:
    """A coroutine in place of `work`, which runs on the thread with its connection."""

    @wraps(work)
    async def run(store: W, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await store.run(lambda connection: work(store, connection, *args, **kwargs))

    return run
