"""A real redis-server of one's own, for tests: on a free loopback port, gone at the end."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 10.0
PROGRAM = "redis-server"


class RedisServer:
    """One server process. It can be stopped, frozen and started anew, with what it had on disk."""

    def __init__(self, directory: Path, *options: str) -> None:
        """`options` go to the server as they are: "--maxmemory", "1mb"."""
        self._directory = directory
        self._options = options
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Return when it accepts connections."""
        command = [PROGRAM, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        self._process = subprocess.Popen(
            [*command, "--dir", str(self._directory), *self._options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.01)
            else:
                return
        raise RuntimeError(f"{PROGRAM} did not start within {START_S:.0f} s")

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
    server = RedisServer(directory, *options)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
