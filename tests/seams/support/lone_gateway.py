"""A `ratoon gateway` process without an engine, for tests of its stored state."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from gateway.startup.first_start import KEYS_FILE, read_keys
from tests.doubles.ports import free_port
from tests.doubles.waiting import wait_for
from tests.seams.support.ratoon import Process, forked

MODELS = "/v1/models"
START_S = 60.0


class Gateway:
    """A `ratoon gateway` process. Tests look at refusals, which need no engine."""

    def __init__(self, process: Process, port: int, data_dir: Path) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.data_dir = data_dir

    def key(self, name: str = "RATOON_DEMO_KEY") -> str:
        return read_keys(self.data_dir / KEYS_FILE)[name]

    def ask(self, path: str, key: str | None = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {key or self.key()}"}
        return httpx.get(self.url + path, headers=headers, timeout=60)

    def code(self) -> str | None:
        """Return the error code that a tenant gets; None if the tenant is served."""
        answer = self.ask(MODELS)
        if answer.status_code == 200:
            return None
        assert answer.status_code == 503
        code: str = answer.json()["error"]["code"]
        return code

    def status(self) -> str:
        status: str = httpx.get(self.url + "/readyz", timeout=60).json()["status"]
        return status

    def metric(self, status: str) -> bool:
        text = self.ask("/metrics", self.key("RATOON_ADMIN_KEY")).text
        return f'ratoon_fault{{status="{status}"}} 1.0' in text


def answers(url: str) -> bool:
    try:
        return httpx.get(url + "/healthz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def started(data_dir: Path, *arguments: str) -> Iterator[Gateway]:
    """Start a gateway, which may end at once."""
    port = free_port()
    place = ["--data-dir", str(data_dir), "--port", str(port), "--socket", f"{data_dir}.sock"]
    process = forked(["gateway", *place, *arguments], {}, data_dir.parent / "log")
    gateway = Gateway(process, port, data_dir)
    try:
        wait_for(lambda: process.poll() is not None or answers(gateway.url), START_S)
        yield gateway
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(30)
