"""The parent restarts dead workers and ends them all at a signal.

Scripts stand in for real workers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.config import default_workers
from gateway.processes.backoff import Backoff
from gateway.processes.workers import Workers
from tests.doubles.processes import is_running
from tests.doubles.waiting import until

SCRIPT = Path(__file__).with_name("fake_worker.py")
LIMIT_S = 30
PARENT = """
import asyncio, sys
from gateway.processes.workers import Worker

async def main():
    worker = await Worker.start(sys.argv[2:], sys.argv[1])
    assert await worker.serves()
    print(worker.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
HASTY = Backoff(first_delay_s=0.01, base_delay_s=0.01, max_delay_s=0.02)


def command(directory: Path) -> list[str]:
    return [sys.executable, "-I", "-S", str(SCRIPT), str(directory)]


def pids(directory: Path) -> set[int]:
    return {int(entry.name) for entry in directory.iterdir() if entry.name.isdigit()}


@asynccontextmanager
async def running(directory: Path, count: int) -> AsyncIterator[tuple[Workers, asyncio.Task[int]]]:
    """Run workers until all have served; stop those that remain after the test."""
    workers = Workers(command(directory), count, directory / "metrics", backoff=HASTY)
    task = asyncio.create_task(workers.run())
    try:
        await until(lambda: len(pids(directory)) == count, LIMIT_S)
        yield workers, task
    finally:
        workers.stop()
        await asyncio.wait_for(task, LIMIT_S)


async def test_a_worker_that_is_killed_has_a_successor_and_the_others_live_on(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, 3) as (_, task):
        first = pids(tmp_path)
        killed, *others = first
        os.kill(killed, signal.SIGKILL)
        await until(lambda: len(pids(tmp_path)) == 4, LIMIT_S)
        for pid in others:
            os.kill(pid, 0)
        assert not task.done()
    assert task.result() == 0


async def test_workers_that_die_again_and_again_are_started_again(tmp_path: Path) -> None:
    async with running(tmp_path, 1) as (_, task):
        for number in range(1, 5):
            (alive,) = [pid for pid in pids(tmp_path) if Path(f"/proc/{pid}").exists()]
            os.kill(alive, signal.SIGKILL)
            await until(lambda: len(pids(tmp_path)) > number, LIMIT_S)  # noqa: B023 - awaited here
        assert not task.done()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_them_all(tmp_path: Path, number: signal.Signals) -> None:
    async with running(tmp_path, 2) as (_, task):
        os.kill(os.getpid(), number)
        assert await asyncio.wait_for(task, LIMIT_S) == 0
        assert len(pids(tmp_path)) == 2, "none was started anew"


async def test_workers_that_never_serve_end_it_with_their_status(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    workers = Workers(command(tmp_path), 2, tmp_path, backoff=HASTY)
    assert await asyncio.wait_for(workers.run(), LIMIT_S) == 7


async def test_a_death_by_signal_is_a_failure_too(tmp_path: Path) -> None:
    suicide = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    workers = Workers(suicide, 1, tmp_path, backoff=HASTY)
    assert await asyncio.wait_for(workers.run(), LIMIT_S) == 1


async def test_one_that_cannot_start_any_more_is_tried_while_others_serve(tmp_path: Path) -> None:
    async with running(tmp_path, 2) as (_, task):
        (tmp_path / "broken").touch()
        os.kill(pids(tmp_path).pop(), signal.SIGKILL)
        await until(lambda: len([*tmp_path.glob("broken-*")]) == 3, LIMIT_S)
        assert not task.done()
        (tmp_path / "broken").unlink()
        await until(lambda: len(pids(tmp_path)) == 3, LIMIT_S)


async def test_one_that_hangs_is_ended_and_has_a_successor(tmp_path: Path) -> None:
    """Replace a worker that hangs.

    A stopped worker sends no heartbeat. Positive control: a worker with heartbeats stays.
    """
    workers = Workers(command(tmp_path), 2, tmp_path, backoff=HASTY, silent_s=2.0)
    task = asyncio.create_task(workers.run())
    try:
        await until(lambda: len(pids(tmp_path)) == 2, LIMIT_S)
        hanging, other = pids(tmp_path)
        os.kill(hanging, signal.SIGSTOP)
        await until(lambda: len(pids(tmp_path)) == 3, LIMIT_S)
        assert not Path(f"/proc/{hanging}").exists()
        os.kill(other, 0)
        assert not task.done()
    finally:
        workers.stop()
        assert await asyncio.wait_for(task, LIMIT_S) == 0


async def test_a_router_process_is_kept_beside_them_and_ends_with_them(tmp_path: Path) -> None:
    """Start and end a router process with the workers.

    The router gets its address like the workers. If its start fails, the workers continue.
    """
    beside, of_workers = tmp_path / "router", tmp_path / "workers"
    beside.mkdir()
    of_workers.mkdir()
    (beside / "broken").touch()
    workers = Workers(command(of_workers), 2, tmp_path, command(beside), backoff=HASTY)
    task = asyncio.create_task(workers.run())
    try:
        await until(lambda: len([*beside.glob("broken-*")]) > 2, LIMIT_S)
        (beside / "broken").unlink()
        await until(lambda: len(pids(beside)) == 1 and len(pids(of_workers)) == 2, LIMIT_S)
        os.kill(pids(beside).pop(), signal.SIGKILL)
        await until(lambda: len(pids(beside)) == 2, LIMIT_S)
        assert len(pids(of_workers)) == 2, "none of them died with it"
        assert not task.done()
    finally:
        workers.stop()
        assert await asyncio.wait_for(task, LIMIT_S) == 0
    for directory in (beside, of_workers):
        assert not any(map(is_running, pids(directory)))
        told = {(directory / str(pid)).read_text() for pid in pids(directory)}
        assert told == {str(tmp_path / "router.sock")}


async def test_a_router_process_that_stands_still_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """End without waiting for a stopped router process.

    Its silence would be noticed only after 30 s, by when container managers kill.
    """
    async with beside_workers(tmp_path) as (workers, task, router):
        os.kill(router, signal.SIGSTOP)
        workers.stop()
        assert await asyncio.wait_for(task, LIMIT_S / 2) == 0
        assert not is_running(router)


async def test_a_signal_to_all_processes_leaves_the_router_process_without_a_successor(
    tmp_path: Path,
) -> None:
    async with beside_workers(tmp_path) as (workers, task, router):
        draining = pids(tmp_path / "workers")
        for pid in draining:
            os.kill(pid, signal.SIGSTOP)
        workers.stop()
        os.kill(router, signal.SIGTERM)
        await until(lambda: not is_running(router), LIMIT_S)
        await asyncio.sleep(0.5)
        assert pids(tmp_path / "router") == {router}
        assert not task.done(), "workers drain"
        for pid in draining:
            os.kill(pid, signal.SIGCONT)
        assert await asyncio.wait_for(task, LIMIT_S) == 0


async def test_what_cannot_be_started_for_now_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "program"
    of_workers, beside = tmp_path / "workers", tmp_path / "router"
    of_workers.mkdir()
    beside.mkdir()
    router = [str(program), *command(beside)[1:]]
    workers = Workers(command(of_workers), 1, tmp_path, router, backoff=HASTY)
    task = asyncio.create_task(workers.run())
    try:
        await until(lambda: caplog.text.count("the router process cannot be started") > 1, LIMIT_S)
        program.symlink_to(sys.executable)
        await until(lambda: len(pids(beside)) == 1 and len(pids(of_workers)) == 1, LIMIT_S)
        assert not task.done()
    finally:
        workers.stop()
        assert await asyncio.wait_for(task, LIMIT_S) == 0


@asynccontextmanager
async def beside_workers(directory: Path) -> AsyncIterator[tuple[Workers, asyncio.Task[int], int]]:
    """Run two workers and a router process; yield them with the router's process id."""
    for name in ("workers", "router"):
        (directory / name).mkdir()
    of_workers, beside = command(directory / "workers"), command(directory / "router")
    workers = Workers(of_workers, 2, directory, beside, backoff=HASTY)
    task = asyncio.create_task(workers.run())
    try:
        await until(lambda: len(pids(directory / "router")) == 1, LIMIT_S)
        await until(lambda: len(pids(directory / "workers")) == 2, LIMIT_S)
        [router] = pids(directory / "router")
        yield workers, task, router
    finally:
        workers.stop()
        await asyncio.wait_for(task, LIMIT_S)


async def test_a_worker_ends_when_its_parent_is_gone(tmp_path: Path) -> None:
    script = [sys.executable, "-c", PARENT, str(tmp_path), *command(tmp_path)]
    parent = await asyncio.create_subprocess_exec(*script, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    worker = int(await asyncio.wait_for(parent.stdout.readline(), LIMIT_S))
    assert is_running(worker)
    parent.kill()
    await parent.wait()
    await until(lambda: not is_running(worker), LIMIT_S)


@pytest.mark.parametrize(
    ("cores", "workers"), [(1, 1), (2, 1), (4, 1), (5, 1), (8, 2), (16, 4), (32, 8), (192, 8)]
)
def test_how_many_a_machine_should_have(cores: int, workers: int) -> None:
    assert default_workers(cores) == workers
