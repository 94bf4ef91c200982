"""The starts of the disk's process, and of another process after each death.

The records of a process that has died are lost. Its file is set aside, because it may have caused
the death. After a pause, another process starts with an empty file. After too many deaths in a
short time the tier stays off. A process that ended because its disk was full is always started
again.
"""

from __future__ import annotations

from collections.abc import Callable

from storage.disk import wire
from storage.disk.config import DiskConfig
from storage.disk.process import DiskProcess, Restarts
from storage.disk.stats import DiskCounters, DiskState
from storage.errors import DiskInUse, DiskUnavailable
from storage.pools.host_pool import HostPool


class Lifecycle:
    """The disk's process and its state. Used by one thread only."""

    def __init__(
        self,
        config: DiskConfig,
        staging: HostPool,
        host: HostPool | None,
        counters: DiskCounters,
        clock: Callable[[], float],
    ) -> None:
        self.state = DiskState.DOWN
        self.process: DiskProcess | None = None
        self.generation = 0  # raised with each death: all records are lost
        self.num_slots: int | None = None  # None: no file was opened yet
        self._config = config
        self._staging = staging
        self._host = host
        self._counters = counters
        self._clock = clock
        self._restarts = Restarts(config)
        self._started = 0.0
        self._met_full_disk = False  # whether the process gave up because the disk was full

    @property
    def is_up(self) -> bool:
        """True if the process has opened its file."""
        return self.state is DiskState.UP

    def start(self, *, keep: bool) -> None:
        """Start a process. With `keep`, it keeps the records of the file. Raises OSError."""
        self.state, self._started = DiskState.STARTING, self._clock()
        self.process = DiskProcess(
            self._config, self._staging, self._host, keep=keep, num_slots=self.num_slots
        )

    def restart_if_due(self) -> None:
        """Start another process with an empty file, if it is time to."""
        if self.state is DiskState.DOWN and self._restarts.is_due(self._clock()):
            try:
                self.start(keep=False)
            except OSError:
                self._note_end()

    def send(self, message: wire.DiskMessage) -> bool:
        """Send a message, unless the process is not up. Returns whether it was sent."""
        if self.process is None or not self.is_up:
            return False
        self.process.send(message)
        return True

    def opened(self, reply: wire.Opened) -> None:
        """Record that the process has opened its file."""
        self.state, self.num_slots = DiskState.UP, reply.num_slots
        self._counters.opened(set_aside=reply.set_aside, given_up=reply.given_up)

    def refused(self, reply: wire.WriteRefused) -> None:
        """Record why the process is ending. Raises DiskInUse, DiskUnavailable at the start."""
        if self.num_slots is not None:
            self._met_full_disk = reply.why is wire.OpenRefusal.DISK_FULL
            return
        in_use = reply.why is wire.OpenRefusal.IN_USE
        raise (DiskInUse if in_use else DiskUnavailable)(reply.text)

    def is_late(self) -> bool:
        """Return whether the process has taken too long to open its file."""
        is_starting = self.state is DiskState.STARTING
        return is_starting and self._clock() - self._started > self._config.start_deadline_s

    def died(self) -> None:
        """Record that the process is dead."""
        if self.process is not None:
            self.process.close()
        self.process = None
        self._counters.died(disk_full=self._met_full_disk)
        self.generation += 1
        self._note_end()

    def end(self) -> None:
        """End the process after its pending work, for ever. May be called twice."""
        process, self.process, self.state = self.process, None, DiskState.OFF
        if process is not None:
            process.finish(self._config.write_deadline_s, self._clock)

    def _note_end(self) -> None:
        comes_back = self._restarts.after_end(self._clock(), disk_full=self._met_full_disk)
        self._met_full_disk = False
        self.state = DiskState.DOWN if comes_back else DiskState.OFF
