"""Makes masks in threads, many at once: the library lets go of the interpreter meanwhile.

A constraint is handed to a thread and back by its `is_busy`. A mask cannot be interrupted: one that
takes long keeps its thread until it is made, and whoever asked for it goes on without it.

Knows: threads. Does not know: what a mask is made of (`token_mask.py`), or who waits for how long.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.grammars.limits import COMPILE_STACK_BYTES
from engine.scheduling.token_constraint import TokenConstraint

MOST_THREADS = 8


@dataclass(eq=False, slots=True)
class Batch:
    """Masks that were asked for together."""

    left: int
    made: threading.Event = field(default_factory=threading.Event)

    def wait(self, seconds: float) -> None:
        """Until all are made, or for so long."""
        if self.left:
            self.made.wait(seconds)


class MaskThreads:
    """A `MaskMaker` whose threads start with the first mask, and end with `close`."""

    def __init__(self, num_threads: int | None = None) -> None:
        """As many threads as cores, at most `MOST_THREADS`, if not told."""
        self._num_threads = num_threads or min(len(os.sched_getaffinity(0)), MOST_THREADS)
        self._threads: list[threading.Thread] = []
        self._waiting: deque[tuple[TokenConstraint, Batch]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False

    def make(self, constraints: Iterable[TokenConstraint]) -> Batch:
        """Begin to make the masks of those that are not busy; waits for nothing.

        One that is busy already is part of the batch in which it was asked for first.
        """
        asked = [one for one in constraints if not one.is_busy]
        batch = Batch(len(asked))
        if asked and not self._threads:
            self._start()
        with self._changed:
            for one in asked:
                one.is_busy = True
                self._waiting.append((one, batch))
            self._changed.notify(len(asked))
        return batch

    def close(self) -> None:
        """End the threads, once the masks under way are made; what waits is never made."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        before = threading.stack_size(COMPILE_STACK_BYTES)
        self._threads = [
            threading.Thread(target=self._work, name="masks", daemon=True)
            for _ in range(self._num_threads)
        ]
        for thread in self._threads:
            thread.start()
        threading.stack_size(before)

    def _work(self) -> None:
        while (asked := self._take()) is not None:
            constraint, batch = asked
            try:
                constraint.allowed()
            finally:  # what it raises is raised again where the mask is used
                constraint.is_busy = False
                self._done(batch)

    def _take(self) -> tuple[TokenConstraint, Batch] | None:
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._changed.wait()
            return None if self._is_closed else self._waiting.popleft()

    def _done(self, batch: Batch) -> None:
        with self._changed:
            batch.left -= 1
            if not batch.left:
                batch.made.set()
