"""Processes that have imported a module already: forked from one that imported it once.

An engine with a fake runner needs nothing of torch but its import, which takes most of its life.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from multiprocessing.context import ForkServerProcess

from tests.doubles.forks.server import fork_server


class ForkedProcess:
    """A process by what tests ask of `asyncio.subprocess.Process`."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process

    def send_signal(self, signal: int) -> None:
        """Send it a signal; ProcessLookupError where it has ended."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal)

    async def wait(self) -> int:
        """Its exit status, once it has ended; the negative number of a signal that ended it."""
        await asyncio.to_thread(self._process.join)
        status = self._process.exitcode
        assert status is not None
        return status


def _exit_with(main: Callable[[list[str]], int], arguments: list[str]) -> None:
    sys.exit(main(arguments))


@asynccontextmanager
async def forked(
    main: Callable[[list[str]], int], arguments: Sequence[str]
) -> AsyncIterator[ForkedProcess]:
    """Call `main`, a function of a module, in a process of its own, which ends with this."""
    process = fork_server().Process(target=_exit_with, args=(main, list(arguments)))
    await asyncio.to_thread(process.start)
    try:
        yield ForkedProcess(process)
    finally:
        process.kill()
        await asyncio.to_thread(process.join)
        process.close()
