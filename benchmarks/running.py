"""A server to be measured: `ratoon serve`, as a user starts it, in a temporary directory."""

from __future__ import annotations

import os
import secrets
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

from gateway.startup.first_start import ADMIN_KEY, DEMO_KEY, KEYS_FILE, read_keys
from tests.doubles.ports import free_port

RATOON = (sys.executable, "-c", "from cli.main import main; main()")
STOP_S = 60.0
# maximum number of characters shown from the end of the log of a server that did not start
LAST_WORDS = 4000


@dataclass(frozen=True, slots=True)
class Running:
    """A running server that takes requests."""

    url: str
    key: str
    admin_key: str
    pid: int
    ready_s: float

    def model(self) -> str:
        """Return the name of the served model."""
        return str(self._ask(self.key, "GET", "/v1/models")["data"][0]["id"])

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """Call an administrative route."""
        return self._ask(self.admin_key, method, f"/admin/{path}", body)

    @contextmanager
    def tenants(self, count: int) -> Iterator[list[str]]:
        """Create `count` tenants, yield their keys, and remove the tenants after the block."""
        made: list[str] = []
        try:
            keys = []
            for _ in range(count):
                name = {"name": f"benchmark-{secrets.token_hex(4)}"}
                made.append(self.admin("POST", "tenants", name)["id"])
                keys.append(self.admin("POST", f"tenants/{made[-1]}/keys", {})["key"])
            yield keys
        finally:
            for tenant in made:
                self.admin("DELETE", f"tenants/{tenant}")

    def _ask(self, key: str, method: str, path: str, body: object = None) -> Any:
        headers = {"Authorization": f"Bearer {key}"}
        answer = httpx.request(method, self.url + path, headers=headers, json=body, timeout=60)
        answer.raise_for_status()
        return answer.json() if answer.content else None


@contextmanager
def running(
    model_dir: Path, data_dir: Path, *, start_s: float, **settings: str
) -> Iterator[Running]:
    """Start a server with `RATOON_*` settings (lower-case names), and stop it after the block.

    Raises TimeoutError if the server is not ready after `start_s`, and RuntimeError if it ends.
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
    log_path = data_dir.parent / f"{data_dir.name}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*RATOON, "serve"], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(process, url, started + start_s, log_path)
            ready_s = time.perf_counter() - started
            keys = read_keys(data_dir / KEYS_FILE)
            yield Running(url, keys[DEMO_KEY], keys[ADMIN_KEY], process.pid, ready_s)
        finally:
            _stop(process)


def _wait_until_ready(
    process: subprocess.Popen[bytes], url: str, deadline: float, log: Path
) -> None:
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            words = log.read_text(errors="replace")[-LAST_WORDS:]
            raise RuntimeError(f"the server ended with {process.returncode}: {words}")
        try:
            if httpx.get(url + "/readyz", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass  # the server is not listening yet
        time.sleep(0.05)
    raise TimeoutError("the server did not come up in time")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
