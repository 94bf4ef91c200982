"""Sequences that hold blocks: those that run, each in a seat, and those that wait for loads.

    queue -> take -> admit -> [loading ->] running -> stop | expel
      ^                                                  |
      `---------------- preempt, start_over -------------'

Other code relies on the order of both lists. A sequence that leaves may have a row in a step under
way: the row's result is dropped, and its tokens are computed again. Its blocks may be handed out
at once, since the device runs all of the engine's work in the order it was launched: what that
row writes is overwritten by the next owner, not the other way round.

Knows: leases, seats, how a sequence starts and leaves. Does not know: whose turn it is, or budgets
(`scheduler.py`).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from operator import attrgetter

from engine.charges import charge_cached, charge_row
from engine.draft import Draft, tokens_to_go
from engine.holdings import Holdings, lease_of
from engine.queue import FairQueue
from engine.seats import Seats
from engine.sequence import Sequence
from engine.stats import Meter
from engine.visitors import Visitors


class ActiveSequences:
    """Sequences with a lease. One owner thread."""

    def __init__(
        self,
        queue: FairQueue,
        holdings: Holdings,
        visitors: Visitors,
        meter: Meter,
        clock: Callable[[], float],
        *,
        max_running: int,
    ) -> None:
        self.running: list[Sequence] = []  # in order of arrival
        self.loading: list[Sequence] = []  # in order of admission
        self.num_preemptions = 0
        self.num_failed_loads = 0
        self._queue = queue
        self._holdings = holdings
        self._visitors = visitors
        self._meter = meter
        self._clock = clock  # for what a match takes; when things happen is told by `now`
        self._max_running = max_running
        self._seats = Seats(max_running)

    @property
    def is_full(self) -> bool:
        """Whether all seats are taken."""
        return len(self.running) >= self._max_running

    def tokens_to_go(self) -> int:
        """Tokens to be computed before those of the sequence that is admitted next."""
        return sum(tokens_to_go(one) for one in self.running)

    def take(self, sequence: Sequence, now: float, before: int) -> bool:
        """Lease the blocks of a waiting sequence; False: not now."""
        began = self._clock()
        is_taken = self._holdings.take(sequence, now, before)
        if sequence.admitted is None:
            sequence.match_seconds = self._clock() - began
        return is_taken

    def admit(
        self, sequence: Sequence, draft: Draft, now: float, *, is_newcomer: bool = False
    ) -> None:
        """The sequence has its lease: start it, or let it wait for its loads, without a seat."""
        self._queue.take(sequence)
        self._visitors.came(sequence, is_newcomer=is_newcomer)
        sequence.leased = now
        if lease_of(sequence).ready:
            self._start(sequence, draft, now)
        else:
            self.loading.append(sequence)

    def start_loaded(self, sequence: Sequence, draft: Draft, now: float) -> None:
        """Its loads have arrived, and there is a seat: start it."""
        self.loading.remove(sequence)
        sequence.load_seconds += now - sequence.leased
        self._start(sequence, draft, now)

    def start_over(self, sequence: Sequence, now: float) -> None:
        """Its loads have failed: back to the front of its flow, to compute those blocks."""
        self.stop(sequence, now)
        self.num_failed_loads += 1
        sequence.loads = "never"  # once is enough: what is computed comes for sure
        self._queue.push_front(sequence)

    def preempt(self, sequence: Sequence, now: float) -> None:
        """Take a sequence's blocks and let it wait at the front of its flow."""
        self.stop(sequence, now)
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._queue.push_front(sequence)

    def stop(self, sequence: Sequence, now: float) -> None:
        """Take a sequence out, running, loading or waiting; its blocks stay in the tree."""
        if sequence.lease is None:
            self._queue.remove(sequence)
        else:
            self._unseat(sequence, now)
            self._holdings.give_back(sequence, now)

    def expel(self, sequence: Sequence, now: float) -> None:
        """Take a running sequence out and forget the blocks that it computed."""
        self._unseat(sequence, now)
        self._holdings.discard(sequence, now)

    def _unseat(self, sequence: Sequence, now: float) -> None:
        self._visitors.went(sequence, now)
        if sequence.seat is None:
            self.loading.remove(sequence)
            return
        self.running.remove(sequence)
        self._seats.give_back(sequence.seat)
        sequence.seat = None

    def _start(self, sequence: Sequence, draft: Draft, now: float) -> None:
        insort(self.running, sequence, key=attrgetter("arrived"))
        sequence.seat = self._seats.take()
        lease = lease_of(sequence)
        if sequence.admitted is None:
            sequence.admitted = now
            self._meter.admitted(sequence.flow, sequence.prompt_len, sequence.found, now)
        draft.moves.extend(lease.moves)
        draft.started.append(sequence)
        charge_cached(self._queue, sequence, lease.cached_tokens)
        charge_row(self._queue, draft.add(sequence))
