"""The workers, which are several gateway processes for the same engines, and their parent.

The parent serves nothing. It reserves the ports, starts the workers and replaces each worker that
dies or stops its heartbeats. Only a dead worker's streams end. Workers share only the port, the
file of the state, the directory of the metrics and, if they are forked, what the parent has
imported. Each worker has its own links to the engines and its own streams, so
`max_streams_per_tenant` is a limit of each worker.

With several engines there is also a router process (`gateway.router_process`). The router process
is restarted like a worker, and ended after all workers. After a signal to end, nothing is started
again. If a worker dies before any worker has served, the gateway ends, since its settings cannot
work. A router process that dies is started again. Meanwhile workers serve without it.

A worker and its parent share a socket. The worker writes a byte to the socket when it begins to
serve. From then on it writes a byte every HEARTBEAT_S, which shows that its event loop runs. The
worker waits for the socket to close, which shows that the parent is gone, however the parent died.
A worker without a parent to restart or stop it must not live on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gateway.processes.attached import SERVING, WorkerConfig
from gateway.processes.backoff import Backoff
from gateway.processes.forked import ForkedProcess
from gateway.processes.loop_timeout import loop_timeout
from gateway.processes.worker_metrics import VARIABLE, end_gauges

# seconds after which a router process that has not ended is killed; it has nothing to save
ROUTER_STOP_S = 2.0
END_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_LOG = logging.getLogger(__name__)
# seconds of silence after which a worker is ended; a worker with many clients may beat late, and
# its end would cut their streams
_SILENT_S = 30.0
_READ_BYTES = 1024
_ROUTER_SOCKET = "router.sock"


class Worker:
    """One running worker, as its parent sees it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process | ForkedProcess,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        # kept open without writing, because the worker ends when the socket closes
        self._writer = writer

    @classmethod
    async def start(
        cls, command: Sequence[str], metrics_dir: str, router_socket: str | None = None
    ) -> Worker:
        """Start `command` with its `WorkerConfig`, as JSON, as the last argument.

        Raises OSError if the system has no process or file left.
        """
        ours, its = socket.socketpair()
        with its:
            config = WorkerConfig(
                parent_socket=its.fileno(), metrics_dir=metrics_dir, router_socket=router_socket
            )
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    msgspec.json.encode(config).decode(),
                    pass_fds=[its.fileno()],
                    env={**os.environ, VARIABLE: metrics_dir},
                )
            except OSError:
                ours.close()
                raise
        return cls(process, *await asyncio.open_connection(sock=ours))

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    def terminate(self) -> None:
        """Make the worker drain. A second call makes it end without waiting."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    async def serves(self) -> bool:
        """Wait until the worker serves (True) or has ended before it served (False)."""
        return await self._reader.read(1) == SERVING

    async def hangs(self, silent_s: float) -> bool:
        """Return True once no heartbeat came for `silent_s` seconds, False if the worker ended."""
        try:
            while True:
                async with loop_timeout(silent_s):
                    if not await self._reader.read(_READ_BYTES):
                        return False
        except TimeoutError:
            return True

    def kill(self) -> None:
        """Kill the worker."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> int:
        """Wait for the worker's end; return its exit status, negative for a signal."""
        try:
            return await self._process.wait()
        finally:
            self._writer.close()


@dataclass(frozen=True, slots=True)
class KeepingConfig:
    """The settings by which worker processes are watched and restarted."""

    metrics_dir: str
    router_socket: str | None
    backoff: Backoff
    silent_s: float


class KeptProcess:
    """A worker or the router process, restarted as a new process when it ends."""

    def __init__(self, name: str, command: Sequence[str], how: KeepingConfig) -> None:
        self.has_served = False
        self._name = name
        self._command = command
        self._how = how
        self._forked: ForkedProcess | None = None
        self._running: Worker | None = None
        self._stopping = asyncio.Event()

    def fork(self) -> WorkerConfig | None:
        """Fork the first process; return its config in that process, and None in this process."""
        how = self._how
        match ForkedProcess.start():
            case ForkedProcess() as forked:
                self._forked = forked
                return None
            case its:
                return WorkerConfig(
                    parent_socket=its.detach(),
                    metrics_dir=how.metrics_dir,
                    router_socket=how.router_socket,
                )

    def close_forked(self) -> None:
        """Close what `fork` opened. Call in children that are forked later."""
        if self._forked is not None:
            self._forked.close()

    async def keep(self, may_follow: Callable[[int], bool] = lambda _: True) -> None:
        """Run the process again and again until `stop`.

        Also stops if `may_follow(status)` is False for a run's exit status.
        """
        short_runs, backoff = 0, self._how.backoff
        while not self._stopping.is_set():
            started = time.monotonic()
            status = await self._run_one()
            if self._stopping.is_set() or not may_follow(status):
                return
            ran_s = time.monotonic() - started
            short_runs = 0 if ran_s >= backoff.healthy_after_s else short_runs + 1
            delay = backoff.delay(short_runs)
            _LOG.warning("%s ended with %d; starting another in %g s", self._name, status, delay)
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stopping.wait()

    def start_no_more(self) -> None:
        """Start no new process after the running process."""
        self._stopping.set()

    def stop(self) -> None:
        """Ask the process to drain, and at a second call to end at once. Start no new process."""
        self.start_no_more()
        if self._running is not None:
            self._running.terminate()

    def kill(self) -> None:
        """Kill the process, if it still runs."""
        if self._running is not None:
            self._running.kill()

    async def _run_one(self) -> int:
        """Run one process; return its exit status, EX_OSERR if it could not start."""
        how = self._how
        try:
            worker = await self._started()
        except OSError as error:  # a later start may find enough processes, files or memory
            _LOG.error("%s cannot be started: %s", self._name, error)
            return os.EX_OSERR
        self._running = worker
        if self._stopping.is_set():
            worker.terminate()
        if await worker.serves():
            self.has_served = True
            if await worker.hangs(how.silent_s):
                _LOG.error("%s has not answered for %g s; ending it", self._name, how.silent_s)
                worker.kill()
        status = await worker.wait()
        self._running = None
        end_gauges(worker.pid, Path(how.metrics_dir))
        return status

    async def _started(self) -> Worker:
        how, forked = self._how, self._forked
        if forked is None:
            return await Worker.start(self._command, how.metrics_dir, how.router_socket)
        self._forked = None
        return Worker(forked, *await asyncio.open_connection(sock=forked.end))


class Workers:
    """The keeper of `count` worker processes. `command` starts a worker (`Worker.start`)."""

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        directory: Path,
        router: Sequence[str] | None = None,
        *,
        backoff: Backoff | None = None,
        silent_s: float = _SILENT_S,
    ) -> None:
        """Keep workers that share `directory`. `router` starts the router process, if any.

        Routers and workers without a heartbeat for `silent_s` seconds are ended.
        """
        at = None if router is None else str(directory / _ROUTER_SOCKET)
        how = KeepingConfig(str(directory), at, backoff or Backoff(), silent_s)
        self._workers = [KeptProcess("a worker", command, how) for _ in range(count)]
        self._router = None if router is None else KeptProcess("the router process", router, how)
        self._status = 0

    def fork(self) -> WorkerConfig | None:
        """Fork the first workers; return its config in each worker, and None in this process.

        Workers share the memory of this process until they write to it. Call while this process has
        no threads, event loop or secrets, and blocks END_SIGNALS. Workers that replace dead ones
        are executed, so that their memory has new addresses. A client that can crash workers could
        otherwise search for the addresses, one try in each worker.
        """
        for place, one in enumerate(self._workers):
            with suppress(OSError):  # `run` tries again, by executing the worker
                config = one.fork()
                if config is not None:
                    for other in self._workers[:place]:
                        other.close_forked()
                    return config
        return None

    async def run(self) -> int:
        """Run until a signal has ended all workers; return the exit status for this process."""
        with self._heeding_signals():
            async with asyncio.TaskGroup() as group:
                if self._router is not None:
                    group.create_task(self._router.keep())
                async with asyncio.TaskGroup() as workers:
                    for one in self._workers:
                        workers.create_task(one.keep(self._may_follow))
                if self._router is not None:
                    self._router.stop()
                    asyncio.get_running_loop().call_later(ROUTER_STOP_S, self._router.kill)
        return self._status

    def stop(self) -> None:
        """Ask all workers to drain. Start no new workers."""
        if self._router is not None:
            # a signal to all processes may have ended the router, which must not start again
            self._router.start_no_more()
        for one in self._workers:
            one.stop()

    def _may_follow(self, status: int) -> bool:
        if any(one.has_served for one in self._workers):
            return True
        _LOG.error("a worker ended with %d before any served", status)
        self._status = max(1, status)
        self.stop()
        return False

    @contextmanager
    def _heeding_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in END_SIGNALS:
            loop.add_signal_handler(number, self.stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)  # `main.py` may have blocked them
        try:
            yield
        finally:
            for number in END_SIGNALS:
                loop.remove_signal_handler(number)
