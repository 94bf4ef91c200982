"""Engines, each as on a machine of its own, and gateways that find them by one Redis.

    gateway 1, gateway 2 --Redis--> list of engines
         `--proxied links--> engine 0, engine 1, engine 2     a data directory and a disk each

All processes are started by the users' commands: `ratoon engine --register`, `ratoon gateway`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import zmq

from gateway.startup.first_start import KEYS_FILE
from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model
from tests.doubles.gateway.redis_server import RedisServer
from tests.doubles.ports import free_port, two_free_ports
from tests.doubles.replicas.proxied_link import ProxiedLink
from tests.doubles.waiting import wait_for
from tests.seams.support.ratoon import Process, forked
from tests.seams.support.server import Front

START_S = 90.0
STOP_S = 30.0
ENGINE = {
    "cache-tokens": "1024",
    "max-model-len": "256",
    "host-cache-tokens": "3072",
    "disk-cache-gib": "0.2",
    "num-threads": "1",
    "load-format": "dummy",
    "max-running": "2",
}


@dataclass
class Machine:
    """An engine: the address at which it listens, the address at which gateways reach it, and its
    process.
    """

    number: int
    engine_port: int
    link: ProxiedLink
    process: Process | None = None


class Machines:
    """The shared settings, and the started processes, which `machines` ends."""

    def __init__(self, directory: Path, redis: RedisServer, stack: ExitStack) -> None:
        self.redis = redis
        self._directory = directory
        self._stack = stack
        self._model = write_tiny_model(directory / "tiny", config=RUNNABLE)
        self._secrets = _secrets(directory / "secrets")
        self._key = directory / "link.key"
        self._key.write_bytes(zmq.curve_keypair()[1] + b"\n")
        self._key.chmod(0o600)
        self.engines: list[Machine] = []

    def add(self, number: int) -> Machine:
        """Add a machine and start its engine."""
        engine_port = two_free_ports()
        link = ProxiedLink(two_free_ports(), engine_port)
        self._stack.enter_context(link.running())
        machine = Machine(number, engine_port, link)
        self.engines.append(machine)
        self.start(machine)
        return machine

    def start(self, machine: Machine) -> None:
        """Start the machine's engine on the disk of the machine's last engine."""
        flags = [f"--{name}={value}" for name, value in ENGINE.items()]
        place = f"tcp://127.0.0.1:{machine.engine_port}"
        flags += ["--register", "--socket", place, "--advertise", machine.link.address]
        machine.process = self._run("engine", f"engine-{machine.number}", *flags)

    def disk(self, machine: Machine) -> Path:
        """The directory of the machine's disk tier."""
        return self._directory / f"engine-{machine.number}" / "blocks"

    def stop(self, machine: Machine) -> None:
        """Let the engine leave: it unregisters, ends its requests, and keeps its disk."""
        assert machine.process is not None
        machine.process.send_signal(signal.SIGTERM)
        assert machine.process.wait(STOP_S) == 0

    @contextmanager
    def gateway(self, name: str, *flags: str) -> Iterator[Front]:
        """Start a gateway; return once it has found the engines and is ready."""
        port, data_dir = free_port(), self._directory / name
        shared = ["--find-engines", "--secrets-dir", str(self._secrets), "--workers=1"]
        shared.append("--redis-timeout-s=2")  # a busy machine must not count as an outage
        process = self._run("gateway", name, f"--port={port}", *shared, *flags)
        try:
            wait_for((data_dir / KEYS_FILE).exists, START_S)
            front = Front(f"http://127.0.0.1:{port}", data_dir)
            wait_for(lambda: process.poll() is not None or front.is_ready(), START_S)
            yield front
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S)

    def _run(self, command: str, name: str, *flags: str) -> Process:
        words = [command, *flags]
        words += ["--model", str(self._model), "--data-dir", str(self._directory / name)]
        words += ["--redis-url", self.redis.url, "--link-key-file", str(self._key)]
        process = forked(words, {}, self._directory / f"{name}.log")
        self._stack.callback(_end, process)
        return process


@contextmanager
def machines(directory: Path, redis: RedisServer, count: int) -> Iterator[Machines]:
    """Start `count` engines without waiting for them. End all processes with the context."""
    with ExitStack() as stack:
        started = Machines(directory, redis, stack)
        for number in range(count):
            started.add(number)
        yield started


def _secrets(directory: Path) -> Path:
    directory.mkdir()
    (directory / "ratoon_server_secret").write_text("s" * 64)
    (directory / "ratoon_pepper").write_text("p" * 64)
    (directory / "ratoon_admin_key").write_text("sk-admin-of-all-gateways")
    return directory


def _end(process: Process) -> None:
    process.kill()
    process.wait(STOP_S)
