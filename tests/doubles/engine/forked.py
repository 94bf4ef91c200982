"""Processes that start with a module already imported: their parent imported it before the fork.

Otherwise importing torch would take most of the life of an engine with a fake runner.
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
    """A process with the methods of `asyncio.subprocess.Process` that tests use."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process

    def send_signal(self, signal: int) -> None:
        """Send a signal to the process. Raises ProcessLookupError if it has ended."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal)

    async def wait(self) -> int:
        """Wait for the process's end; return its exit status, negative for a fatal signal."""
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
    """Call `main`, a module's function, in a new process that ends with this process."""
    process = fork_server().Process(target=_exit_with, args=(main, list(arguments)))
    await asyncio.to_thread(process.start)
    try:
        yield ForkedProcess(process)
    finally:
        process.kill()
        await asyncio.to_thread(process.join)
        process.close()
