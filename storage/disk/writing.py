"""The one thread that changes the file: takes what is queued, as much at once as is sensible.

A transaction costs a wait for the disk, so that many blocks share one; but not so many that a
full file fails more than it must. Where a batch finds no room its parts are tried one by one.

Knows: queues, batches, what to do when there is no room. Does not know: the socket.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass, field

from storage.disk.memories import Memories
from storage.disk.records import Records, ToWrite
from storage.disk.wire import Ended, Erase, Forget, Forgot, Outcome, Reply, Write
from storage.errors import FileFull

_IDLE_S = 60.0  # after so long without work, dead readers are looked for


@dataclass(frozen=True, slots=True)
class Stop:
    """The last job."""


Job = Write | Erase | Forget | Stop


@dataclass(slots=True)
class _Batch:
    writes: list[Write] = field(default_factory=list)
    erased: dict[int, None] = field(default_factory=dict)
    then: Forget | Stop | None = None  # what ended it


class Writing:
    """Does jobs in order. `run` is a thread's; `queue` is for all threads."""

    def __init__(
        self,
        records: Records,
        memories: Memories,
        reply: Callable[[Reply], None],
        tend: Callable[[], None],
        blocks_at_once: int,
    ) -> None:
        """`reply` sends to the engine; `tend` looks after the file and says how it is."""
        self.queue: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.refused = 0  # writes that found no room
        self._records = records
        self._memories = memories
        self._reply = reply
        self._tend = tend
        self._blocks_at_once = blocks_at_once
        self._owed: dict[int, None] = {}  # slots that there was no room to erase

    def run(self) -> None:
        """Work until Stop; what was queued before it is done. FileDamaged."""
        then: Forget | Stop | None = None
        while not isinstance(then, Stop):
            batch = self._next()
            self._apply(batch)
            then = batch.then
            if isinstance(then, Forget):
                self._forget(then)
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
        erased = {**self._owed, **batch.erased}
        if not batch.writes and not erased:
            return
        if self._change(batch.writes, erased):
            self._owed = {}
            self._answer(batch.writes, Outcome.DONE)
            return
        self._owed = {} if self._change([], erased) else erased
        for write in batch.writes:
            done = self._change([write], {})
            if done:
                self._owed.pop(write.slot, None)
            self.refused += not done
            self._answer([write], Outcome.DONE if done else Outcome.FAILED)

    def _change(self, writes: list[Write], erased: dict[int, None]) -> bool:
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
            return  # not said to be forgotten, so it will be asked for again
        if self._change([], dict.fromkeys(slots)):
            self._reply(Forgot(job.owner))

    def _answer(self, writes: list[Write], outcome: Outcome) -> None:
        for write in writes:
            self._reply(Ended(write.ticket, outcome))
