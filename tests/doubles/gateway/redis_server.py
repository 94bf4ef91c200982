"""A real redis-server of one's own, for tests: on a free loopback port, gone at the end."""

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
    """One server process. It can be stopped, frozen and started anew, with what it had on disk."""

    def __init__(self, directory: Path, *options: str) -> None:
        """`options` go to the server as they are: "--maxmemory", "1mb"."""
        self._directory = directory
        self._options = options
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Return when it accepts connections. Another one's server on the port is not taken."""
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
        """End it at once, without a word to its clients."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Let it hang: connections stay, answers do not come."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise RuntimeError(f"{PROGRAM} is not running")
        self._process.send_signal(number)


@contextmanager
def redis_server(directory: Path, *options: str) -> Iterator[RedisServer]:
    """A running server. Raises RuntimeError where the program is not installed."""
    if shutil.which(PROGRAM) is None:
        raise RuntimeError(f"{PROGRAM} is not installed: `make test` installs it")
    server = _started(directory, options)
    try:
        yield server
    finally:
        server.kill()


def _started(directory: Path, options: tuple[str, ...]) -> RedisServer:
    """A server on a free port; if somebody else took it meanwhile, on another one."""
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
    """Whether the process is who listens on the port, by the sockets that it holds."""
    wanted = f"0100007F:{port:04X}"
    inodes = {
        fields[9]
        for fields in map(str.split, Path("/proc/net/tcp").read_text().splitlines())
        if fields[1] == wanted and fields[3] == "0A"  # listening
    }
    held = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed while we looked
            held.add(os.readlink(entry))
    return any(f"socket:[{inode}]" in held for inode in inodes)
