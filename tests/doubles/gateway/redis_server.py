"""A real redis-server for one test, on a free loopback port."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.doubles.ports import free_port

START_S = 10.0
ATTEMPTS = 3
PROGRAM = "redis-server"


class RedisServer:
    """A server process that a test can kill, freeze, and start again with its data on disk."""

    def __init__(self, directory: Path, *options: str) -> None:
        """Prepare a server. `options` are passed to it, for example "--maxmemory", "1mb"."""
        self._directory = directory
        self._options = options
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The server's URL for clients."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server; return once this process itself accepts connections on the port."""
        command = [PROGRAM, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        process = subprocess.Popen(
            [*command, "--dir", str(self._directory), *self._options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._process = process
        deadline = time.monotonic() + START_S
        while not _listens(process.pid, self.port):
            if process.poll() is not None:
                raise RuntimeError(f"{PROGRAM} ended with {process.returncode}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{PROGRAM} did not start within {START_S:.0f} s")
            time.sleep(0.01)

    def kill(self) -> None:
        """Kill the server, so that its clients get no more answers."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stop the process: connections stay open, but no answers come."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the stopped process continue."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise RuntimeError(f"{PROGRAM} is not running")
        self._process.send_signal(number)


@contextmanager
def redis_server(directory: Path, *options: str) -> Iterator[RedisServer]:
    """Run a server while the context is open. Raises RuntimeError if redis is not installed."""
    if shutil.which(PROGRAM) is None:
        raise RuntimeError(f"{PROGRAM} is not installed: `make test` installs it")
    server = _started(directory, options)
    try:
        yield server
    finally:
        server.kill()


def _started(directory: Path, options: tuple[str, ...]) -> RedisServer:
    """Start a server on a free port; if another program takes the port first, try another port."""
    for _ in range(ATTEMPTS - 1):
        server = RedisServer(directory, *options)
        try:
            server.start()
        except RuntimeError:
            continue
        return server
    server = RedisServer(directory, *options)
    server.start()
    return server


def _listens(pid: int, port: int) -> bool:
    """Return whether one of the process's own sockets listens on the port."""
    wanted = f"0100007F:{port:04X}"
    inodes = {
        fields[9]
        for fields in map(str.split, Path("/proc/net/tcp").read_text().splitlines())
        if fields[1] == wanted and fields[3] == "0A"  # "0A" means listening
    }
    held = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor may have been closed meanwhile
            held.add(os.readlink(entry))
    return any(f"socket:[{inode}]" in held for inode in inodes)
