"""The threads that make token masks in parallel. llguidance releases Python's lock for this.

The computation of a mask cannot be interrupted. A slow mask keeps its thread busy, and the step
continues without the mask.

A free thread takes the masks of one sequence, from the flow with the fewest busy threads. No flow
may have all threads, so a flow with slow masks does not delay other flows much.

A constraint is behind if a step had no time to follow its tokens. A thread first follows these
tokens, while it holds Python's lock. Only one constraint may catch up at a time. After it has
caught up, no constraint may catch up for LATE_REST times as long.

Elsewhere: how a mask is made (`token_mask.py`).
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from engine.grammars.limits import COMPILE_STACK_BYTES, LATE_REST
from engine.sequences.token_constraint import TokenConstraint, WantedMasks

MOST_THREADS = 8
WOKEN = 2  # threads woken per request; to wake one takes longer than to make most masks
HELP_S = 0.001  # seconds after which all threads are woken, because some mask is slow


@dataclass(eq=False, slots=True)
class MaskBatch:
    """A set of token masks that were requested together."""

    left: int
    wake_all: Callable[[], None]
    made: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)  # guards the field `left`

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` until all masks are made."""
        if not self.left or self.made.wait(min(seconds, HELP_S)):
            return
        self.wake_all()
        self.made.wait(max(seconds - HELP_S, 0.0))


_Asked: TypeAlias = tuple[WantedMasks, MaskBatch]


class MaskThreads:
    """The threads that make masks. Implements `MaskMaker`. They start with the first mask."""

    def __init__(
        self,
        num_threads: int | None = None,
        *,
        next_step: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Plan for `num_threads` threads, by default one more than cores, up to `MOST_THREADS`.

        A flow may use all threads but one. `next_step` is called each time `make` is called.
        """
        self._next_step = next_step
        self._monotonic = monotonic
        self._catches_up = False
        self._late_at = 0.0
        self._num_threads = num_threads or min(len(os.sched_getaffinity(0)) + 1, MOST_THREADS)
        self._most_of_a_flow = max(self._num_threads - 1, 1)
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, deque[_Asked]] = OrderedDict()
        self._at_work: Counter[str] = Counter()
        self._is_closed = False

    def make(self, wanted: Iterable[WantedMasks]) -> MaskBatch:
        """Start to make masks for the constraints that are not busy, without waiting for them.

        A busy constraint stays in the earlier batch that requested its masks.
        """
        self._next_step()
        asked = [one for one in wanted if not one.constraint.is_busy]
        batch = MaskBatch(len(asked), self._wake_all)
        if asked and not self._threads:
            self._start()
        with self._changed:
            for one in asked:
                one.constraint.is_busy = True
                self._waiting.setdefault(one.constraint.flow, deque()).append((one, batch))
            self._changed.notify(min(len(asked), WOKEN))
        return batch

    def close(self) -> None:
        """End the threads after their current masks. Waiting masks are not made."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _wake_all(self) -> None:
        with self._changed:
            self._changed.notify_all()

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
        while (taken := self._take()) is not None:
            flow, first = taken
            asked: _Asked | None = first
            del taken, first  # otherwise the idle thread would keep the grammar in use
            while asked is not None:
                self._make(*asked)
                asked = self._further(flow)
            self._give_back(flow)

    def _make(self, wanted: WantedMasks, batch: MaskBatch) -> None:
        with suppress(Exception):  # the error is raised again where the step uses the mask
            if wanted.constraint.is_behind:
                self._catch_up(wanted.constraint)
            wanted.constraint.allowed_after(wanted.drafts)
        wanted.constraint.is_busy = False
        with batch.lock:
            batch.left -= 1
        if not batch.left:
            batch.made.set()

    def _catch_up(self, constraint: TokenConstraint) -> None:
        took = 0.0
        try:
            took = constraint.catch_up()
        finally:
            with self._changed:
                self._catches_up = False
                self._late_at = self._monotonic() + LATE_REST * took
                self._changed.notify()

    def _further(self, flow: str) -> _Asked | None:
        with self._changed:
            waiting = self._waiting[flow]
            is_alone = len(self._waiting) == 1 and not self._is_closed
            if not (is_alone and waiting) or waiting[0][0].constraint.is_behind:
                return None
            return waiting.popleft()

    def _take(self) -> tuple[str, _Asked] | None:
        with self._changed:
            while not self._is_closed:
                flow = self._next_flow()
                if flow is not None:
                    self._at_work[flow] += 1
                    self._waiting.move_to_end(flow)
                    asked = self._waiting[flow].popleft()
                    self._catches_up |= asked[0].constraint.is_behind
                    return flow, asked
                self._changed.wait(self._rest())
        return None

    def _next_flow(self) -> str | None:
        fewest, chosen = self._most_of_a_flow, None
        for flow, waiting in self._waiting.items():
            at_work = self._at_work[flow]
            if at_work < fewest and self._may_begin(waiting):
                fewest, chosen = at_work, flow
        return chosen

    def _may_begin(self, waiting: deque[_Asked]) -> bool:
        if not waiting or not waiting[0][0].constraint.is_behind:
            return bool(waiting)
        return not self._catches_up and self._monotonic() >= self._late_at

    def _rest(self) -> float | None:
        rest = self._late_at - self._monotonic()
        is_late = any(one and one[0][0].constraint.is_behind for one in self._waiting.values())
        return rest if rest > 0 and is_late else None

    def _give_back(self, flow: str) -> None:
        with self._changed:
            self._at_work[flow] -= 1
            self._waiting.move_to_end(flow)
            if not self._at_work[flow]:
                del self._at_work[flow]
                if not self._waiting[flow]:
                    del self._waiting[flow]
