"""The workers of a gateway share the memory of their parent, which has read no secret."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import msgspec
import pytest

from gateway.auth.secrets import load_secrets
from gateway.config import GatewayConfig
from gateway.startup.first_start import ensure_first_start
from tests.doubles.ports import free_port
from tests.doubles.processes import children, memory_of, private_mib
from tests.doubles.waiting import wait_for

COUNT = 2
LIMIT_S = 60
# a parent that gets a signal while it forks its workers
INTERRUPTED = """
import os, sys
from gateway.processes.worker_metrics import VARIABLE
from gateway.startup.main import main

parent = os.getpid()
os.register_at_fork(before=lambda: os.kill(parent, int(sys.argv[2])))
status = main(sys.argv[1:2])
if os.getpid() == parent:
    print(os.environ[VARIABLE])
sys.exit(status)
"""


def serve(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    except httpx.TransportError:
        return False


def held(pid: int, secrets: dict[str, bytes]) -> set[str]:
    """Return the names of the secrets that are in a process's memory."""
    memory = memory_of(pid).values()
    return {name for name, secret in secrets.items() if any(secret in one for one in memory)}


def config_of(model: Path, data_dir: Path) -> GatewayConfig:
    return GatewayConfig(
        model_dir=str(model),
        model_name="tiny",
        data_dir=str(data_dir),
        engines=(str(data_dir / "engine.sock"),),
        port=free_port(),
        workers=COUNT,
    )


def test_workers_share_memory_without_secrets(tiny_model: Path, tmp_path: Path) -> None:
    keys = asyncio.run(ensure_first_start(tmp_path, clock=time.time))
    found = load_secrets(tmp_path)
    secrets = {
        "pepper": found.pepper,
        "server": found.server_secret,
        "admin": keys.admin_key.encode(),
    }
    config = config_of(tiny_model, tmp_path)
    command = [sys.executable, "-m", "gateway", msgspec.json.encode(config).decode()]
    parent = subprocess.Popen(command)
    try:
        wait_for(lambda: serve(config.port), LIMIT_S)
        forked = children(parent.pid)
        assert len(forked) == COUNT
        wait_for(lambda: all("pepper" in held(pid, secrets) for pid in forked), LIMIT_S)
        assert not held(parent.pid, secrets)
        shared = max(map(private_mib, forked))
        os.kill(forked[0], signal.SIGKILL)
        wait_for(lambda: len({*children(parent.pid)} - {*forked}) == 1, LIMIT_S)
        [executed] = {*children(parent.pid)} - {*forked}
        wait_for(lambda: private_mib(executed) > 1.5 * shared, LIMIT_S)
        parent.terminate()
        assert parent.wait(LIMIT_S) == 0
    finally:
        parent.kill()
        parent.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_forks_ends_all_and_leaves_nothing(
    tiny_model: Path, tmp_path: Path, number: signal.Signals
) -> None:
    asyncio.run(ensure_first_start(tmp_path, clock=time.time))
    config = msgspec.json.encode(config_of(tiny_model, tmp_path)).decode()
    command = [sys.executable, "-c", INTERRUPTED, config, str(int(number))]
    ended = subprocess.run(command, stdout=subprocess.PIPE, timeout=LIMIT_S, check=True)
    directory = Path(ended.stdout.decode().strip())
    assert directory.name.startswith("ratoon-workers-")
    assert not directory.exists()
