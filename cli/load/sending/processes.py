"""The division of load among processes.

One Python process can read about 10,000 chunks a second, but a server sends twice as many. Each
process has its own event loop, and all processes begin at the same time.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain as joined
from typing import TypeVar

from cli.load.sender import RequestOutcome

START_S = 60.0
Part = TypeVar("Part")


class LoadProcesses:
    """A pool of up to `count` processes, started by the first run and ended by `__exit__`."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ProcessPoolExecutor | None = None
        self._size = 0

    def __enter__(self) -> LoadProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def run(
        self, run: Callable[[Part], list[RequestOutcome]], parts: Sequence[Part]
    ) -> list[RequestOutcome]:
        """Run each part in a process, and join the outcomes. A single part runs in this process.

        Raises BrokenProcessPool if a process does not start.
        """
        if len(parts) == 1:
            return run(parts[0])
        return list(joined.from_iterable(self._pool_of(len(parts)).map(run, parts)))

    def _pool_of(self, size: int) -> ProcessPoolExecutor:
        """Return a pool with a process for each part, so that all parts begin together."""
        if self._pool is not None and self._size != size:
            self._pool.shutdown()
            self._pool = None
        if self._pool is None:
            # Spawned, since a forked copy of a process with threads may deadlock.
            spawn = multiprocessing.get_context("spawn")
            together = spawn.Barrier(size, timeout=START_S)
            self._pool = ProcessPoolExecutor(size, mp_context=spawn, initializer=together.wait)
            self._size = size
        return self._pool


def wall_seconds(outcomes: Sequence[RequestOutcome]) -> float:
    """Return the seconds from the first request's arrival to the last request's end."""
    began = min(outcome.arrived_at for outcome in outcomes)
    return max(outcome.arrived_at + outcome.e2e_s for outcome in outcomes) - began
