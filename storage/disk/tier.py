"""The engine's side of the disk tier: it sends requests to the disk's process.

When the process dies, all requests to it fail and its records are lost. The file is set aside,
because it may have caused the death. After a pause, another process starts with an empty file. The
new process raises `generation`, and the cache must forget all blocks of the tier. After too many
deaths in a short time the tier stays off. A process that ended because its disk was full is always
started again.

A read that misses its deadline fails. The answer may still come later. Until then, the read's
buffer is not used again. A write that misses its deadline fails only after the process is killed,
because the process may still be reading the block.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from storage.disk import wire
from storage.disk.config import DiskConfig
from storage.disk.file.done_flushes import read_done
from storage.disk.open_requests import OpenRequests
from storage.disk.process import DiskProcess, Restarts
from storage.disk.staging import Staging
from storage.disk.stats import DiskCounters, DiskProcessStats, DiskState
from storage.errors import DiskInUse, DiskUnavailable
from storage.move import BlockRecord
from storage.pools.host_pool import HostPool

_CPU = torch.device("cpu")


class DiskTier:
    """The disk tier: KV blocks on disk, by slot.

    Used by one thread only. Only the constructor, `wait`, `scan` and `close` wait. A slot being
    written or read must not be used until `poll` has returned the end.
    """

    def __init__(
        self,
        config: DiskConfig,
        host: HostPool | None = None,
        device: torch.device = _CPU,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the disk's process and wait until its file is open.

        Blocks of `host` are written without a copy. The staging buffers are pinned for copies to
        and from `device`. Raises DiskInUse, DiskUnavailable, PoolDoesNotFit.
        """
        if config.num_blocks < 1:
            raise DiskUnavailable(f"{config.max_bytes} bytes hold no block")
        self._config = config
        self._host = host
        self._clock = clock
        self.buffers = Staging(config.num_buffers, config.block_bytes, device)
        self._asked = OpenRequests(config.read_deadline_s, config.write_deadline_s)
        self._scanned: deque[wire.ScannedSlots] = deque()
        self._forgetting: dict[str, None] = {}
        self._restarts = Restarts(config)
        self._counters = DiskCounters(config.directory)
        self.generation = 0
        self._state = DiskState.DOWN
        self._started = 0.0
        self._num_blocks: int | None = None
        self._met_full_disk = False  # whether the process gave up because the disk was full
        self._process: DiskProcess | None = None
        self._start(keep=True)

    @property
    def num_blocks(self) -> int:
        """The number of slots, at most as many as fit the free space at the start."""
        return self._num_blocks or 0

    @property
    def directory(self) -> Path:
        """The directory of the tier's files."""
        return self._config.directory

    @property
    def state(self) -> DiskState:
        return self._state

    @property
    def is_up(self) -> bool:
        """True if moves to and from the disk can succeed."""
        return self._state is DiskState.UP

    @property
    def encrypts(self) -> bool:
        return self._config.encrypt

    @property
    def is_answering(self) -> bool:
        """True if the disk is up and has answered all reads that missed their deadline."""
        return self.is_up and not self.buffers.is_owed

    @property
    def stats(self) -> DiskProcessStats:
        """The counters that the process has last reported, available at once."""
        return replace(self._counters.stats, forgetting=len(self._forgetting))

    def write(self, slot: int, record: BlockRecord, segment: wire.Segment, place: int) -> int:
        """Write the block at `place`, which must not change until the write has ended.

        Returns a ticket. `poll` returns the write's end with this ticket.
        """
        if self._process is None or not self.is_up:
            return self._asked.refused()
        ticket = self._asked.write(self._clock())
        self._process.send(wire.Write(ticket, slot, segment, place, record))
        return ticket

    def read(self, slot: int, record: BlockRecord, buffer: int) -> int:
        """Start to read the block of `record` from `slot` into a buffer.

        The buffer is in use until the read has ended.
        """
        if self._process is None or not self.is_up:
            return self._asked.refused()
        ticket = self._asked.read(buffer, self._clock())
        self._process.send(wire.Read(ticket, slot, buffer, record))
        return ticket

    def erase(self, slots: Iterable[int]) -> None:
        """Erase these slots before any later write begins.

        A later read may still find the blocks in these slots.
        """
        if self._process is not None and self.is_up:
            left = list(slots)
            for start in range(0, len(left), wire.ERASE_SLOTS):
                self._process.send(wire.Erase(left[start : start + wire.ERASE_SLOTS]))

    def forget_owner(self, owner: str) -> None:
        """Make all records of `owner` permanently unreadable.

        Returns at once. `stats.forgetting` counts the owner until the records are unreadable. The
        request outlives a restart of the disk's process.
        """
        self._forgetting[owner] = None
        if self._process is not None and self.is_up:
            self._process.send(wire.Forget(owner))

    def is_forgetting(self, owner: str) -> bool:
        return owner in self._forgetting

    def erase_unlisted(self) -> None:
        """Do nothing, because `scan` lists all sound records and erases all other records."""

    def note_flushes(self, flushes: Sequence[str]) -> None:
        """Record these flushes on disk as done, once all earlier erasures are done.

        Returns at once. A flush whose note does not reach the disk is repeated at the next start.
        """
        if self._process is not None and self.is_up:
            for start in range(0, len(flushes), wire.NOTED_AT_ONCE):
                self._process.send(wire.Note(list(flushes[start : start + wire.NOTED_AT_ONCE])))

    def done_flushes(self) -> list[str]:
        """Read the ids of finished flushes from disk. Return none if they cannot be read."""
        try:
            return read_done(self.directory)
        except OSError:
            return []

    def poll(self) -> list[wire.DiskEnded]:
        """Return the requests that have ended since the last call.

        Also fails requests past their deadlines, and restarts the disk's process.
        """
        if self._process is not None:
            self._process.flush()
            self._watch(self._process)
        elif self._state is DiskState.DOWN and self._restarts.is_due(self._clock()):
            self._spawn_again()
        return self._asked.take_ends()

    def wait(self, timeout_s: float) -> None:
        """Wait until `poll` may have results, or `timeout_s` seconds have passed."""
        if self._process is not None:
            self._process.wait_for_reply(timeout_s)

    def scan(self) -> Iterator[tuple[int, BlockRecord]]:
        """Yield every slot that holds a record, with the record.

        Must be called before the first move, and waits for the process. Ends early if the process
        dies. Then `generation` has risen.
        """
        first: int | None = 0
        while first is not None and self._process is not None and self.is_up:
            self._process.send(wire.Scan(first))
            piece = self._await_scanned()
            if piece is None:
                return
            yield from piece.entries
            first = piece.next_slot

    def close(self) -> None:
        """Wait until all writes are on disk, and end the process. May be called twice."""
        process, self._process, self._state = self._process, None, DiskState.OFF
        if process is not None:
            process.finish(self._config.write_deadline_s, self._clock)
        self.buffers.close()

    def _start(self, *, keep: bool) -> None:
        try:
            self._spawn(keep=keep)
            while not self.is_up:
                self._await_opening()
                if self._state is DiskState.OFF:
                    raise DiskUnavailable(f"{self._config.directory} cannot be opened")
                if self._process is None:
                    self._spawn(keep=False)
            if not self._num_blocks:
                raise DiskUnavailable(f"too little is left of the disk of {self.directory}")
        except DiskUnavailable:
            self.close()
            raise

    def _await_opening(self) -> None:
        while self._state is DiskState.STARTING and self._process is not None:
            self._process.wait_for_reply(0.05)
            self._watch(self._process)

    def _await_scanned(self) -> wire.ScannedSlots | None:
        give_up = self._clock() + self._config.start_deadline_s
        while not self._scanned:
            if self._process is None:
                return None
            if self._clock() > give_up:  # a damaged file may keep the process in an endless loop
                self._process.kill()
            self._process.wait_for_reply(0.05)
            self._watch(self._process)
        return self._scanned.popleft()

    def _spawn(self, *, keep: bool) -> None:
        self._state, self._started = DiskState.STARTING, self._clock()
        self._process = DiskProcess(
            self._config, self.buffers.pool, self._host, keep=keep, num_slots=self._num_blocks
        )

    def _spawn_again(self) -> None:
        try:
            self._spawn(keep=False)
        except OSError:
            self._note_end()

    def _listen(self, process: DiskProcess) -> None:
        while (reply := process.receive()) is not None:
            self._take(reply, process)

    def _take(self, reply: wire.Reply, process: DiskProcess) -> None:
        if isinstance(reply, wire.DiskEnded):
            if not self.buffers.answered(reply.ticket):
                self._asked.answered(reply)
        elif isinstance(reply, wire.FileStats):
            self._counters.take(reply)
        elif isinstance(reply, wire.ScannedSlots):
            self._scanned.append(reply)
        elif isinstance(reply, wire.Forgot):
            self._forgetting.pop(reply.owner, None)
        elif isinstance(reply, wire.Opened):
            self._take_opened(reply, process)
        elif self._num_blocks is not None:
            self._met_full_disk = reply.why is wire.OpenRefusal.DISK_FULL
        else:
            raise (DiskInUse if reply.why is wire.OpenRefusal.IN_USE else DiskUnavailable)(
                reply.text
            )

    def _take_opened(self, reply: wire.Opened, process: DiskProcess) -> None:
        self._state, self._num_blocks = DiskState.UP, reply.num_slots
        self._counters.opened(set_aside=reply.set_aside, given_up=reply.given_up)
        for owner in self._forgetting:
            process.send(wire.Forget(owner))

    def _watch(self, process: DiskProcess) -> None:
        self._listen(process)
        now = self._clock()
        for ticket, buffer in self._asked.give_up_late_reads(now):
            self.buffers.owe(ticket, buffer)
            self._counters.stats.late += 1
        if self._asked.is_write_late(now):
            process.kill()
        starting = self._state is DiskState.STARTING
        if starting and now - self._started > self._config.start_deadline_s:
            process.kill()
        if process.is_dead:
            self._listen(process)
            self._reap(process)

    def _reap(self, process: DiskProcess) -> None:
        process.close()
        self._process = None
        self._asked.fail_all()
        self.buffers.no_answers_to_come()
        self._counters.died(disk_full=self._met_full_disk)
        self.generation += 1
        self._note_end()

    def _note_end(self) -> None:
        comes_back = self._restarts.after_end(self._clock(), disk_full=self._met_full_disk)
        self._met_full_disk = False
        self._state = DiskState.DOWN if comes_back else DiskState.OFF
