"""The engine's control of the disk's process: start, messages, end, restarts."""

from __future__ import annotations

import socket
import subprocess
from collections import deque
from collections.abc import Callable

from storage.child_module import start_module
from storage.disk import wire
from storage.disk.config import DiskConfig
from storage.pools.host_pool import HostPool
from storage.waiting import wait_for_any


class DiskProcess:
    """A disk process from its start to its end. Used by one thread only."""

    def __init__(
        self,
        config: DiskConfig,
        staging: HostPool,
        host: HostPool | None,
        *,
        keep: bool,
        num_slots: int | None = None,
    ) -> None:
        """Start the process and send it the file to open, without waiting. Raises OSError."""
        ours, its_own = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = wire.Channel(ours)
        self._outbox: deque[bytes] = deque()
        fds = [its_own.fileno(), staging.descriptor]
        if host is not None:
            fds.append(host.descriptor)
        with its_own:
            self._child = start_module("storage.disk", str(its_own.fileno()), descriptors=fds)
        shared = None if host is None else _shared(host)
        self.send(wire.Open(config, num_slots, keep, _shared(staging), shared))

    @property
    def is_dead(self) -> bool:
        """True if the process has ended, and so no longer touches shared memory."""
        return self._child.poll() is not None

    def send(self, message: wire.DiskMessage) -> None:
        """Send a message as soon as the socket has room."""
        self._outbox.append(self._channel.encode(message))
        self.flush()

    def flush(self) -> None:
        """Send the queued messages for which the socket has room."""
        try:
            while self._outbox and self._channel.send(self._outbox[0], socket.MSG_DONTWAIT):
                self._outbox.popleft()
        except wire.WireBroken:
            self.kill()

    def receive(self) -> wire.Reply | None:
        """Return the next reply, or None if no reply has come or the process is gone."""
        try:
            content = self._channel.receive(socket.MSG_DONTWAIT)
            return None if content is None else wire.decode(wire.REPLIES, content)
        except wire.WireBroken:
            self.kill()
            return None

    def wait_for_reply(self, timeout_s: float) -> None:
        """Wait for a reply or for room to send, but at most `timeout_s`."""
        writing = [self._channel.socket] if self._outbox else []
        wait_for_any([self._channel.socket], timeout_s, writing)
        self.flush()

    def kill(self) -> None:
        """Kill the process. It may die later (`is_dead`), when it no longer waits for a disk."""
        self._outbox.clear()
        if not self.is_dead:
            self._child.kill()

    def finish(self, deadline_s: float, clock: Callable[[], float]) -> None:
        """End the process after its pending work, or kill it after `deadline_s`."""
        self.send(wire.CloseFile())
        give_up = clock() + deadline_s
        while not self.wait_for_end(0.01) and clock() < give_up:
            while self.receive() is not None:
                pass
            self.flush()
        self.kill()
        self.wait_for_end(deadline_s)
        self.close()

    def wait_for_end(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for the process's end, and return whether it has ended."""
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Close the socket, which ends a process that is still alive."""
        self._channel.socket.close()


class Restarts:
    """The schedule of restarts of an ended process: exponential backoff, then no restart.

    Counts failures within `failure_window_s`. Used by one thread only.
    """

    def __init__(self, config: DiskConfig) -> None:
        self._config = config
        self._failures: deque[float] = deque()
        self._due: float | None = None

    def after_end(self, now: float, *, disk_full: bool) -> bool:
        """Record the end of a process, and return whether to start another process.

        `disk_full` means that the process ended because its disk was full, which is no failure.
        """
        if disk_full:
            self._due = now + self._config.full_retry_s
            return True
        while self._failures and now - self._failures[0] > self._config.failure_window_s:
            self._failures.popleft()
        self._failures.append(now)
        if len(self._failures) >= self._config.max_failures:
            self._due = None
            return False
        self._due = now + self._config.restart_after_s * 2.0 ** (len(self._failures) - 1)
        return True

    def is_due(self, now: float) -> bool:
        """Return whether the next restart is due."""
        return self._due is not None and now >= self._due


def _shared(pool: HostPool) -> wire.SharedSegment:
    return wire.SharedSegment(pool.descriptor, pool.num_blocks)
