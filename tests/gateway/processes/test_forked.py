"""The parent forks its first workers, and executes the workers that replace them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.doubles.processes import children, is_running
from tests.doubles.waiting import until
from tests.gateway.processes.test_workers import LIMIT_S, command, pids

COUNT = 3


@asynccontextmanager
async def parent(directory: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a parent that has forked its workers; kill it after the test."""
    words = ["-m", "tests.gateway.processes.forking", str(directory), str(COUNT)]
    started = await asyncio.create_subprocess_exec(sys.executable, *words, *command(directory))
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()
        await until(lambda: not any(map(is_running, pids(directory))), LIMIT_S)


async def forked(directory: Path, started: asyncio.subprocess.Process) -> set[int]:
    await until(lambda: len(pids(directory)) == COUNT, LIMIT_S)
    assert set(children(started.pid)) == pids(directory)
    return pids(directory)


def program(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def opened(pid: int) -> list[str]:
    return [os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()]


async def test_forked_workers_serve_until_the_parent_s_signal(tmp_path: Path) -> None:
    async with parent(tmp_path) as started:
        for pid in await forked(tmp_path, started):
            assert program(pid) == program(started.pid)
        started.terminate()
        assert await asyncio.wait_for(started.wait(), LIMIT_S) == 0
        assert not any(map(is_running, pids(tmp_path)))


async def test_the_successor_of_a_forked_worker_is_executed(tmp_path: Path) -> None:
    async with parent(tmp_path) as started:
        killed, *others = await forked(tmp_path, started)
        for number in range(1, 3):
            os.kill(killed, signal.SIGKILL)
            await until(lambda: len(pids(tmp_path)) == COUNT + number, LIMIT_S)  # noqa: B023
            [killed] = set(children(started.pid)) - set(others)
            assert program(killed).startswith("\0".join(command(tmp_path)).encode())
        assert set(others) < set(children(started.pid))
        started.terminate()
        assert await asyncio.wait_for(started.wait(), LIMIT_S) == 0


async def test_a_forked_worker_holds_nothing_of_another(tmp_path: Path) -> None:
    async with parent(tmp_path) as started:
        workers = await forked(tmp_path, started)
        # the worker's socket to its parent, and two of its own
        for pid in workers:
            assert sum(one.startswith("socket:") for one in opened(pid)) == 3
            assert not any("pidfd" in one for one in opened(pid))
        # positive control: the parent holds each worker's pidfd, the last soon after that fork
        await until(lambda: sum("pidfd" in one for one in opened(started.pid)) == COUNT, LIMIT_S)
        started.kill()
        await started.wait()
        await until(lambda: not any(map(is_running, workers)), LIMIT_S)


async def test_forked_workers_that_cannot_serve_end_the_parent(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    async with parent(tmp_path) as started:
        assert await asyncio.wait_for(started.wait(), LIMIT_S) == 7
