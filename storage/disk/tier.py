"""The engine's side of the disk tier: it sends requests to the disk's process.

When the process dies, all requests to it fail, its records are lost, and another process starts
(`lifecycle.py`). `generation` has risen then, and the cache must forget all blocks of the tier.

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
from storage.disk.lifecycle import Lifecycle
from storage.disk.open_requests import OpenRequests
from storage.disk.process import DiskProcess
from storage.disk.staging import Staging
from storage.disk.stats import DiskCounters, DiskProcessStats, DiskState
from storage.errors import DiskUnavailable
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
        self._clock = clock
        self.buffers = Staging(config.num_buffers, config.block_bytes, device)
        self._asked = OpenRequests(config.read_deadline_s, config.write_deadline_s)
        self._scanned: deque[wire.ScannedSlots] = deque()
        self._forgetting: dict[str, None] = {}
        self._counters = DiskCounters(config.directory)
        self._life = Lifecycle(config, self.buffers.pool, host, self._counters, clock)
        self._start()

    @property
    def num_blocks(self) -> int:
        """The number of slots, at most as many as fit the free space at the start."""
        return self._life.num_slots or 0

    @property
    def directory(self) -> Path:
        """The directory of the tier's files."""
        return self._config.directory

    @property
    def generation(self) -> int:
        """The number of processes that have died. With each, all records were lost."""
        return self._life.generation

    @property
    def state(self) -> DiskState:
        return self._life.state

    @property
    def is_up(self) -> bool:
        """True if moves to and from the disk can succeed."""
        return self._life.is_up

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
        if not self.is_up:
            return self._asked.refused()
        ticket = self._asked.write(self._clock())
        self._life.send(wire.Write(ticket, slot, segment, place, record))
        return ticket

    def read(self, slot: int, record: BlockRecord, buffer: int) -> int:
        """Start to read the block of `record` from `slot` into a buffer.

        The buffer is in use until the read has ended.
        """
        if not self.is_up:
            return self._asked.refused()
        ticket = self._asked.read(buffer, self._clock())
        self._life.send(wire.Read(ticket, slot, buffer, record))
        return ticket

    def erase(self, slots: Iterable[int]) -> None:
        """Erase these slots before any later write begins.

        A later read may still find the blocks in these slots.
        """
        left = list(slots)
        for start in range(0, len(left), wire.ERASE_SLOTS):
            self._life.send(wire.Erase(left[start : start + wire.ERASE_SLOTS]))

    def forget_owner(self, owner: str) -> None:
        """Make all records of `owner` permanently unreadable.

        Returns at once. `stats.forgetting` counts the owner until the records are unreadable. The
        request outlives a restart of the disk's process.
        """
        self._forgetting[owner] = None
        self._life.send(wire.Forget(owner))

    def is_forgetting(self, owner: str) -> bool:
        return owner in self._forgetting

    def erase_unlisted(self) -> None:
        """Do nothing, because `scan` lists all sound records and erases all other records."""

    def note_flushes(self, flushes: Sequence[str]) -> None:
        """Record these flushes on disk as done, once all earlier erasures are done.

        Returns at once. A flush whose note does not reach the disk is repeated at the next start.
        """
        for start in range(0, len(flushes), wire.NOTED_AT_ONCE):
            self._life.send(wire.Note(list(flushes[start : start + wire.NOTED_AT_ONCE])))

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
        process = self._life.process
        if process is not None:
            process.flush()
            self._watch(process)
        else:
            self._life.restart_if_due()
        return self._asked.take_ends()

    def wait(self, timeout_s: float) -> None:
        """Wait until `poll` may have results, or `timeout_s` seconds have passed."""
        if self._life.process is not None:
            self._life.process.wait_for_reply(timeout_s)

    def scan(self) -> Iterator[tuple[int, BlockRecord]]:
        """Yield every slot that holds a record, with the record.

        Must be called before the first move, and waits for the process. Ends early if the process
        dies. Then `generation` has risen.
        """
        first: int | None = 0
        while first is not None and self._life.send(wire.Scan(first)):
            piece = self._await_scanned()
            if piece is None:
                return
            yield from piece.entries
            first = piece.next_slot

    def close(self) -> None:
        """Wait until all writes are on disk, and end the process. May be called twice."""
        self._life.end()
        self.buffers.close()

    def _start(self) -> None:
        try:
            self._life.start(keep=True)
            while not self.is_up:
                self._await_opening()
                if self.state is DiskState.OFF:
                    raise DiskUnavailable(f"{self.directory} cannot be opened")
                if self._life.process is None:
                    self._life.start(keep=False)
            if not self.num_blocks:
                raise DiskUnavailable(f"too little is left of the disk of {self.directory}")
        except DiskUnavailable:
            self.close()
            raise

    def _await_opening(self) -> None:
        while self.state is DiskState.STARTING and self._life.process is not None:
            self._life.process.wait_for_reply(0.05)
            self._watch(self._life.process)

    def _await_scanned(self) -> wire.ScannedSlots | None:
        give_up = self._clock() + self._config.start_deadline_s
        while not self._scanned:
            process = self._life.process
            if process is None:
                return None
            if self._clock() > give_up:  # a damaged file may keep the process in an endless loop
                process.kill()
            process.wait_for_reply(0.05)
            self._watch(process)
        return self._scanned.popleft()

    def _watch(self, process: DiskProcess) -> None:
        self._listen(process)
        now = self._clock()
        for ticket, buffer in self._asked.give_up_late_reads(now):
            self.buffers.owe(ticket, buffer)
            self._counters.stats.late += 1
        if self._asked.is_write_late(now) or self._life.is_late():
            process.kill()
        if process.is_dead:
            self._listen(process)
            self._asked.fail_all()
            self.buffers.no_answers_to_come()
            self._life.died()

    def _listen(self, process: DiskProcess) -> None:
        while (reply := process.receive()) is not None:
            self._take(reply)

    def _take(self, reply: wire.Reply) -> None:
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
            self._life.opened(reply)
            for owner in self._forgetting:
                self._life.send(wire.Forget(owner))
        else:
            self._life.refused(reply)
