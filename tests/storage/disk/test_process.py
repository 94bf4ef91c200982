"""The disk process alone: the modules that it imports, and its end when the engine ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from storage.disk.process import DiskProcess
from storage.disk.stats import DiskState
from storage.disk.tier import DiskTier
from storage.disk.wire import Erase, Opened
from storage.pools.host_pool import HostPool
from tests.doubles.disk.open_files import open_files
from tests.doubles.processes import disk_process
from tests.storage.scene import BLOCK_BYTES, CPU, disk_config


def started(directory: Path, staging: HostPool) -> DiskProcess:
    process = DiskProcess(disk_config(directory), staging, None, keep=True)
    while not isinstance(process.receive(), Opened):
        process.wait_for_reply(0.1)
    return process


def test_the_process_loads_no_torch() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import storage.disk.__main__, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "lmdb" in loaded
    assert not {"torch", "triton", "engine", "prefix_cache", "kernels"} & set(loaded)


def test_the_process_ends_when_its_engine_is_gone(tmp_path: Path) -> None:
    staging = HostPool(4, BLOCK_BYTES, CPU)
    process = started(tmp_path, staging)
    assert not process.is_dead
    process.close()
    assert process.wait_for_end(30.0)
    assert process.is_dead
    staging.close()


def test_a_dead_process_is_noticed_when_it_is_spoken_to(tmp_path: Path) -> None:
    staging = HostPool(4, BLOCK_BYTES, CPU)
    process = started(tmp_path, staging)
    process.kill()
    assert process.wait_for_end(30.0)
    process.send(Erase([1]))
    while process.receive() is not None:
        pass  # reads the messages sent before the end
    assert process.is_dead
    process.close()
    staging.close()


def test_closing_leaves_neither_process_nor_descriptor(tmp_path: Path) -> None:
    DiskTier(disk_config(tmp_path)).close()
    before = open_files()
    disk = DiskTier(disk_config(tmp_path))
    pid = disk_process(tmp_path)
    assert open_files() > before
    disk.close()
    disk.close()
    assert disk.state is DiskState.OFF
    assert not Path(f"/proc/{pid}").exists()
    assert open_files() == before
