"""Who holds blocks: sequences that run, each with a seat, and those whose prefix is coming up.

    queue -> take -> let_in -> [loading ->] running -> stop | expel
      ^                                                  |
      `---------------- preempt, start_over -------------'

Both lists are in an order that others rely on. A sequence that leaves may have a row on its way:
the row's result is dropped, and its tokens are computed again. Its blocks may be handed out at
once, since the device runs all of the engine's work in the order it was launched: what the stray
row writes lies before what the next owner writes.

Knows: leases, seats, how one comes and goes. Does not know: whose turn it is, or budgets
(`scheduler.py`).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from operator import attrgetter

from engine.charges import charge_cached, charge_row
from engine.holdings import Holdings, lease_of
from engine.plan import Plan, tokens_to_go
from engine.queue import FairQueue
from engine.seats import Seats
from engine.sequence import Sequence
from engine.stats import Meter
from engine.visitors import Visitors


class Aboard:
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
        """Tokens that are to be computed before those of whoever is admitted next."""
        return sum(tokens_to_go(one) for one in self.running)

    def take(self, sequence: Sequence, now: float, before: int) -> bool:
        """Lease the blocks of one that waits; False: not now."""
        began = self._clock()
        is_taken = self._holdings.take(sequence, now, before)
        if sequence.admitted is None:
            sequence.match_seconds = self._clock() - began
        return is_taken

    def let_in(
        self, sequence: Sequence, plan: Plan, now: float, *, is_newcomer: bool = False
    ) -> None:
        """It has its blocks: it starts, or its loads do, until which it needs no seat."""
        self._queue.take(sequence)
        self._visitors.came(sequence, is_newcomer=is_newcomer)
        sequence.leased = now
        if lease_of(sequence).ready:
            self._start(sequence, plan, now)
        else:
            self.loading.append(sequence)

    def board(self, sequence: Sequence, plan: Plan, now: float) -> None:
        """What it had to load has come, and there is a seat."""
        self.loading.remove(sequence)
        sequence.load_seconds += now - sequence.leased
        self._start(sequence, plan, now)

    def start_over(self, sequence: Sequence, now: float) -> None:
        """What it had to load has not come: back to the front of its flow, to compute it."""
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
            self._stand_up(sequence, now)
            self._holdings.give_back(sequence, now)

    def expel(self, sequence: Sequence, now: float) -> None:
        """Take a running sequence out and forget the blocks that it computed."""
        self._stand_up(sequence, now)
        self._holdings.discard(sequence, now)

    def _stand_up(self, sequence: Sequence, now: float) -> None:
        self._visitors.went(sequence, now)
        if sequence.seat is None:
            self.loading.remove(sequence)
            return
        self.running.remove(sequence)
        self._seats.give_back(sequence.seat)
        sequence.seat = None

    def _start(self, sequence: Sequence, plan: Plan, now: float) -> None:
        insort(self.running, sequence, key=attrgetter("arrived"))
        sequence.seat = self._seats.take()
        lease = lease_of(sequence)
        if sequence.admitted is None:
            sequence.admitted = now
            self._meter.admitted(sequence.flow, sequence.prompt_len, sequence.found, now)
        plan.moves.extend(lease.moves)
        plan.started.append(sequence)
        charge_cached(self._queue, sequence, lease.cached_tokens)
        charge_row(self._queue, plan.add(sequence))
