"""The thread that changes the file. It takes queued jobs in batches.

A transaction costs a wait for the disk, so many blocks share a transaction. Batches are bounded. If
a batch does not fit the file, its jobs are tried one by one.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from storage.disk.file.records import DiskRecords, ToWrite
from storage.disk.wire import (
    CloseFile,
    DiskEnded,
    DiskOutcome,
    Erase,
    Forget,
    Forgot,
    Note,
    Reply,
    Segment,
    Write,
)
from storage.errors import FileFull, is_disk_full

_ERASED_AT_ONCE = 256  # maximum number of slots in one transaction
_ERASED_IN_NEED = 8
_IDLE_S = 5.0


Job = Write | Erase | Forget | Note | CloseFile  # CloseFile ends the thread


@dataclass(slots=True)
class _WriteBatch:
    writes: list[Write] = field(default_factory=list)
    erased: dict[int, None] = field(default_factory=dict)
    # the job that ended the batch, and is done after the batch
    then: Forget | Note | CloseFile | None = None


class Writing:
    """The writing thread's queue of jobs. `run` is the thread's body. Any thread may `queue`."""

    def __init__(
        self,
        records: DiskRecords,
        block_at: Callable[[Segment, int], memoryview],
        reply: Callable[[Reply], None],
        tend: Callable[[], None],
        blocks_at_once: int,
        note_done: Callable[[Iterable[str]], None],
    ) -> None:
        """Prepare to serve jobs. `reply` sends an answer.

        `tend` drops dead readers and reports the file's use. `note_done` remembers flushes and may
        raise OSError.
        """
        self.queue: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.refused = 0
        self.met_full_disk = False  # whether the last attempt to write met a full disk
        self._records = records
        self._block_at = block_at
        self._reply = reply
        self._tend = tend
        self._blocks_at_once = blocks_at_once
        self._note_done = note_done
        self._unforgotten: dict[str, None] = {}
        self._unerased: dict[int, None] = {}  # slots that could not be erased yet, for lack of room
        self._forgotten: dict[str, None] = {}
        self._unnoted: list[str] = []  # flushes to note once all slots are erased

    def run(self) -> None:
        """Run the queued jobs in order, up to CloseFile. Raises FileDamaged."""
        then: Forget | Note | CloseFile | None = None
        while not isinstance(then, CloseFile):
            batch = self._next()
            self._apply(batch)
            then = batch.then
            if isinstance(then, Forget):
                self._unforgotten[then.owner] = None
            elif isinstance(then, Note):
                self._unnoted += then.flushes
            self._forget()
            self._tell_forgotten()
            self._note()
            self._tend()

    def _next(self) -> _WriteBatch:
        batch = _WriteBatch()
        try:
            job = self.queue.get(timeout=_IDLE_S)
            while True:
                if isinstance(job, Write):
                    batch.writes.append(job)
                elif isinstance(job, Erase):
                    batch.erased.update(dict.fromkeys(job.slots))
                else:
                    batch.then = job
                    break
                if len(batch.writes) >= self._blocks_at_once:
                    break
                job = self.queue.get_nowait()
        except queue.Empty:
            pass
        return batch

    def _apply(self, batch: _WriteBatch) -> None:
        erased = {**self._unerased, **batch.erased}
        is_done = len(erased) <= _ERASED_AT_ONCE and self._change(batch.writes, erased)
        self._unerased = {} if is_done else self._erase(erased)
        if is_done or self._change(batch.writes, ()):
            self._answer(batch.writes, DiskOutcome.DONE)
            return
        for write in batch.writes:
            done = self._change([write], ())
            self.refused += not done
            self._answer([write], DiskOutcome.DONE if done else DiskOutcome.FAILED)

    def _erase(self, slots: Iterable[int]) -> dict[int, None]:
        """Erase slots in several small transactions, since each changed page needs a free page.

        Returns the slots that could not be erased even in small transactions.
        """
        left = list(slots)
        for at_once, in_need in ((_ERASED_AT_ONCE, False), (_ERASED_IN_NEED, True)):
            parts = [left[at : at + at_once] for at in range(0, len(left), at_once)]
            left = [
                slot
                for part in parts
                if not self._change([], part, in_need=in_need)
                for slot in part
            ]
        return dict.fromkeys(left)

    def _change(self, writes: list[Write], erased: Iterable[int], *, in_need: bool = False) -> bool:
        """Erase and write in one transaction, or return False without changes if this fails."""
        if not writes and not erased:
            return True
        blocks = [
            ToWrite(write.slot, write.record, self._block_at(write.segment, write.place))
            for write in writes
        ]
        try:
            self._records.write(blocks, erased, in_need=in_need)
        except (FileFull, OSError) as error:
            self.met_full_disk = is_disk_full(error)
            return False
        if writes:
            self.met_full_disk = False
        return True

    def _forget(self) -> None:
        """Forget owners. If a full disk keeps a key from being erased, a later call retries."""
        for owner in list(self._unforgotten):
            with suppress(OSError):
                slots = self._records.forget(owner)
                self._unerased.update(self._erase(slots))
                self._forgotten[owner] = None
                del self._unforgotten[owner]

    def _tell_forgotten(self) -> None:
        if not self._unerased:
            for owner in self._forgotten:
                self._reply(Forgot(owner))
            self._forgotten = {}

    def _note(self) -> None:
        """Note flushes. If the disk is full, a later call retries."""
        if self._unnoted and not (self._unerased or self._unforgotten):
            with suppress(OSError):
                self._note_done(self._unnoted)
                self._unnoted = []

    def _answer(self, writes: list[Write], outcome: DiskOutcome) -> None:
        for write in writes:
            self._reply(DiskEnded(write.ticket, outcome))
