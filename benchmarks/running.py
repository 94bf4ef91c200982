"""A server under measurement: `ratoon serve` as its users start it, in a directory of its own.

Knows: how it is started and stopped, its key, its counters and its memory. Does not know: what
it is asked.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.processes import descendants, resident_mib
from gateway.first_start import ADMIN_KEY, DEMO_KEY, KEYS_FILE, read_keys
from tests.doubles.ports import free_port

RATOON = (sys.executable, "-c", "from cli.main import main; main()")
STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Running:
    """A server that takes requests."""

    url: str
    key: str
    admin_key: str
    pid: int
    ready_s: float  # from its start until it took requests

    def model(self) -> str:
        """The name of what it serves."""
        headers = {"Authorization": f"Bearer {self.key}"}
        answer = httpx.get(self.url + "/v1/models", headers=headers, timeout=60)
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])

    def pool(self) -> dict[str, int]:
        """The blocks of the cache: total, free, used, evictable, leased."""
        blocks: dict[str, int] = self._admin("GET", "/admin/cache/stats")["pool"]["blocks"]
        return blocks

    def queue(self) -> dict[str, int]:
        """How many requests run and wait."""
        queue: dict[str, int] = self._admin("GET", "/admin/cache/stats")["queue"]
        return queue

    def flush(self) -> None:
        """Forget every cached prefix."""
        self._admin("POST", "/admin/cache/flush")

    def resident_mib(self) -> dict[str, float]:
        """Memory of its processes, by role; those of one role added up."""
        sizes: dict[str, float] = {}
        for pid, command in descendants(self.pid):
            role = next((name for name in ("engine", "gateway") if name in command), "other")
            sizes[role] = sizes.get(role, 0.0) + resident_mib(pid)
        return sizes

    def _admin(self, method: str, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self.admin_key}"}
        answer = httpx.request(method, self.url + path, headers=headers, timeout=60)
        answer.raise_for_status()
        return answer.json() if answer.content else None


@contextmanager
def running(
    model_dir: Path, data_dir: Path, *, start_s: float, **settings: str
) -> Iterator[Running]:
    """Start a server with `RATOON_*` settings (in lower case), and stop it behind the block.

    Raises TimeoutError when it is not ready after `start_s`, RuntimeError when it ends.
    """
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if "RATOON" not in name}
    environment |= {
        "RATOON_PORT": str(port),
        "RATOON_DATA_DIR": str(data_dir),
        "RATOON_MODEL": str(model_dir),
        **{f"RATOON_{name.upper()}": value for name, value in settings.items()},
    }
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with (data_dir.parent / f"{data_dir.name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*RATOON, "serve"], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(process, url, started + start_s)
            ready_s = time.perf_counter() - started
            keys = read_keys(data_dir / KEYS_FILE)
            yield Running(url, keys[DEMO_KEY], keys[ADMIN_KEY], process.pid, ready_s)
        finally:
            _stop(process)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, deadline: float) -> None:
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            if httpx.get(url + "/readyz", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass  # not listening yet
        time.sleep(0.05)
    raise TimeoutError("the server did not come up in time")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
