"""A whole server: `ratoon serve`, started as users start it, with its processes and files."""

from __future__ import annotations

import json
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI

from gateway.startup.first_start import ADMIN_KEY, DEMO2_KEY, DEMO_KEY, KEYS_FILE, read_keys
from tests.doubles.ports import free_port
from tests.doubles.processes import children
from tests.doubles.waiting import wait_for
from tests.seams.support.ratoon import Process, executed, forked

START_S = 120.0
STOP_S = 30.0


class Front:
    """The HTTP interface of a running server, with its keys and clients."""

    def __init__(self, url: str, data_dir: Path) -> None:
        self.url = url
        self.data_dir = data_dir
        self.keys = read_keys(data_dir / KEYS_FILE)
        self.demo_key = self.keys[DEMO_KEY]
        self.demo2_key = self.keys[DEMO2_KEY]
        self.admin_key = self.keys[ADMIN_KEY]

    def client(self, key: str | None = None) -> httpx.Client:
        """Return an HTTP client with a key, by default the demo tenant's."""
        headers = {"Authorization": f"Bearer {key or self.demo_key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60)

    def new_tenant(self) -> str:
        """Make a tenant with an empty cache; return its key."""
        with self.client(self.admin_key) as client:
            made = client.post("/admin/tenants", json={"name": f"tenant-{uuid.uuid4().hex}"})
            made.raise_for_status()
            issued = client.post(f"/admin/tenants/{made.json()['id']}/keys")
            issued.raise_for_status()
            key: str = issued.json()["key"]
            return key

    def openai(self, key: str | None = None) -> OpenAI:
        """Return OpenAI's official client with a key, by default the demo tenant's."""
        return OpenAI(base_url=self.url + "/v1", api_key=key or self.demo_key, max_retries=0)

    def pool(self) -> dict[str, int]:
        """Return the pool's counts of blocks: total, free, used, evictable, leased."""
        pool: dict[str, int] = self.stats()["pool"]["blocks"]
        return pool

    def stats(self) -> dict[str, Any]:
        """Return the answer of `GET /admin/cache/stats`."""
        with self.client(self.admin_key) as client:
            answer = client.get("/admin/cache/stats")
            answer.raise_for_status()
            stats: dict[str, Any] = answer.json()
            return stats

    def is_ready(self) -> bool:
        """Return whether `/readyz` answers that the server is ready."""
        try:
            return httpx.get(self.url + "/readyz", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False


class Server(Front):
    """A running `ratoon serve`, with its processes."""

    def __init__(self, process: Process, url: str, data_dir: Path) -> None:
        super().__init__(url, data_dir)
        self.process = process

    def children(self) -> dict[str, int]:
        """Return the process ids of the gateway and the engine, by name."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            for name in ("engine", "gateway"):
                if parent == self.process.pid and name.encode() in command:
                    found[name] = int(entry.name)
        return found

    def engines(self) -> dict[str, int]:
        """Return the process ids of several engines, by their names as replicas."""
        found = {}
        for pid in children(self.process.pid):
            with suppress(FileNotFoundError, ProcessLookupError, ValueError):
                *_, name, config = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
                if name == "engine":
                    socket = Path(json.loads(config)["process"]["socket"])
                    found[socket.stem.partition("-")[2] or "0"] = pid
        return found

    def wait_until_ready(self, timeout_s: float = START_S) -> None:
        """Wait until the engine accepts requests. Raise if the server ends, or is too late."""
        wait_for(lambda: self.process.poll() is not None or self.is_ready(), timeout_s)
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended with {self.process.poll()}")


@contextmanager
def running_server(
    data_dir: Path,
    settings: Mapping[str, str] | None = None,
    within: Sequence[str] = (),
    *,
    is_executed: bool = False,
) -> Iterator[Server]:
    """Run `ratoon serve` with `RATOON_*` settings; yield once it is ready, and stop it at the end.

    Its processes are forked with their modules imported, unless `is_executed` is set, or a command
    `within`, such as `prlimit`, runs it.
    """
    port = (settings or {}).get("RATOON_PORT") or free_port()
    variables = {
        "RATOON_PORT": str(port),
        "RATOON_DATA_DIR": str(data_dir),
        "RATOON_CACHE_TOKENS": "16384",
        # small, since all pages of host memory are allocated at the start
        "RATOON_HOST_CACHE_TOKENS": "4096",
        **(settings or {}),
    }
    log = data_dir.parent / f"{data_dir.name}.log"
    process: Process
    if within or is_executed:
        process = executed(["serve"], variables, log, within)
    else:
        process = forked(["serve"], variables, log)
    try:
        wait_for(lambda: process.poll() is not None or (data_dir / KEYS_FILE).exists(), START_S)
        server = Server(process, f"http://127.0.0.1:{port}", data_dir)
        server.wait_until_ready()
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
