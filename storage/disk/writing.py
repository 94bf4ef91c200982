"""The one thread that changes the file; it takes queued jobs in batches.

A transaction costs a wait for the disk, so many blocks share one, though not so many that one which
finds no room delays much. When a batch finds no room, its parts are tried one by one.

Knows: queues, batches, what to do when there is no room. Does not know: the socket.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from storage.disk.records import Records, ToWrite
from storage.disk.wire import Ended, Erase, Forget, Forgot, Outcome, Reply, Segment, Write
from storage.errors import FileFull

_ERASED_AT_ONCE = 256  # slots in one transaction
_ERASED_IN_NEED = 8  # the same when there was no room for that many
_IDLE_S = 60.0  # without work, after which `tend` is called all the same


class Blocks(Protocol):
    """Where blocks lie that are to be written. Memories is one."""

    def block(self, segment: Segment, place: int) -> memoryview:
        """The block at `place`."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The last job: end the thread."""


Job = Write | Erase | Forget | Stop


@dataclass(slots=True)
class _Batch:
    writes: list[Write] = field(default_factory=list)
    erased: dict[int, None] = field(default_factory=dict)
    then: Forget | Stop | None = None  # the job that ended the batch, to be done after it


class Writing:
    """Does jobs in order. `run` is a thread's; `queue` is for all threads."""

    def __init__(
        self,
        records: Records,
        memories: Blocks,
        reply: Callable[[Reply], None],
        tend: Callable[[], None],
        blocks_at_once: int,
    ) -> None:
        """`reply` sends to the engine; `tend` drops dead readers and reports the file's use."""
        self.queue: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.refused = 0  # writes that found no room
        self._records = records
        self._memories = memories
        self._reply = reply
        self._tend = tend
        self._blocks_at_once = blocks_at_once
        self._unerased: dict[int, None] = {}  # slots still to be erased, for lack of room
        self._forgotten: dict[str, None] = {}  # owners to report once all slots are erased

    def run(self) -> None:
        """Work until Stop; jobs queued before it are done. Raises FileDamaged."""
        then: Forget | Stop | None = None
        while not isinstance(then, Stop):
            batch = self._next()
            self._apply(batch)
            then = batch.then
            if isinstance(then, Forget):
                self._forget(then)
            self._tell_forgotten()
            self._tend()

    def _next(self) -> _Batch:
        batch = _Batch()
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

    def _apply(self, batch: _Batch) -> None:
        erased = {**self._unerased, **batch.erased}
        if len(erased) <= _ERASED_AT_ONCE and self._change(batch.writes, erased):
            self._unerased = {}
            self._answer(batch.writes, Outcome.DONE)
            return
        self._unerased = self._erase(erased)
        if self._change(batch.writes, ()):
            self._answer(batch.writes, Outcome.DONE)
            return
        for write in batch.writes:
            done = self._change([write], ())
            self.refused += not done
            self._answer([write], Outcome.DONE if done else Outcome.FAILED)

    def _erase(self, slots: Iterable[int]) -> dict[int, None]:
        """Erase in parts, for every page that a transaction changes needs a free one.

        Returns the slots for which there was no room even so.
        """
        left = list(slots)
        for at_once in (_ERASED_AT_ONCE, _ERASED_IN_NEED):
            parts = [left[at : at + at_once] for at in range(0, len(left), at_once)]
            left = [slot for part in parts if not self._change([], part) for slot in part]
        return dict.fromkeys(left)

    def _change(self, writes: list[Write], erased: Iterable[int]) -> bool:
        """Erase and write in one transaction; False: there was no room, nothing has changed."""
        if not writes and not erased:
            return True
        blocks = [
            ToWrite(write.slot, write.record, self._memories.block(write.segment, write.place))
            for write in writes
        ]
        try:
            self._records.write(blocks, erased)
        except (FileFull, OSError):
            return False
        return True

    def _forget(self, job: Forget) -> None:
        try:
            slots = self._records.forget(job.owner)
        except OSError:
            return  # not reported as forgotten, so the engine will ask again
        self._unerased.update(self._erase(slots))
        self._forgotten[job.owner] = None

    def _tell_forgotten(self) -> None:
        if not self._unerased:
            for owner in self._forgotten:
                self._reply(Forgot(owner))
            self._forgotten = {}

    def _answer(self, writes: list[Write], outcome: Outcome) -> None:
        for write in writes:
            self._reply(Ended(write.ticket, outcome))
