"""The sequences that hold KV blocks: a list of running ones, and a list of loading ones.

    queue -> take -> admit -> [loading ->] running -> stop | expel
      ^                                                  |
      `---------------- preempt, start_over -------------'

Other code relies on the order of both lists. A sequence may be removed while a step computes its
row. The result of the row is then dropped, and its tokens are computed again. Another sequence may
get the blocks immediately, because the device runs all launches in order.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from operator import attrgetter

from engine.drafting.draft import Drafting
from engine.scheduling.counters import EngineCounters
from engine.scheduling.fairness.arrivals import Arrivals
from engine.scheduling.fairness.costs import charge_cached, charge_row
from engine.scheduling.fairness.queue import FairQueue
from engine.scheduling.fetching import Fetcher
from engine.scheduling.scheduled_rows import remaining_tokens
from engine.scheduling.step_builder import StepBuilder
from engine.sentinel.sentinel import Sentinel
from engine.sequences.sequence import Sequence
from engine.sequences.sequence_cache import SequenceCache, lease_of


class ActiveSequences:
    """The sequences with a lease. Used by one thread only."""

    def __init__(
        self,
        queue: FairQueue,
        sequence_cache: SequenceCache,
        arrivals: Arrivals,
        fetcher: Fetcher,
        counters: EngineCounters,
        clock: Callable[[], float],
        drafting: Drafting,
        sentinel: Sentinel | None,
        *,
        max_running: int,
    ) -> None:
        self.running: list[Sequence] = []  # in order of arrival
        self.loading: list[Sequence] = []  # in order of admission
        self.num_preemptions = 0
        self.num_failed_loads = 0
        self._queue = queue
        self._sequence_cache = sequence_cache
        self._arrivals = arrivals
        self._fetcher = fetcher
        self._counters = counters
        self._clock = clock
        self._drafting = drafting
        self._sentinel = sentinel
        self._max_running = max_running
        # A freed slot may be reused immediately, because the device runs launches in order.
        self._free_batch_slots = list(range(max_running - 1, -1, -1))

    @property
    def is_full(self) -> bool:
        """True if all batch slots are taken."""
        return len(self.running) >= self._max_running

    @property
    def holding(self) -> list[Sequence]:
        """All sequences with a lease. The loading sequences come first."""
        return [*self.loading, *self.running]

    def remaining_tokens(self) -> int:
        """Count the tokens that will be computed before those of a newly admitted sequence."""
        return sum(remaining_tokens(one) for one in self.running)

    def take(self, sequence: Sequence, now: float, before: int) -> bool:
        """Lease blocks for a waiting sequence. Return False if this is not possible now."""
        began = self._clock()
        is_taken = self._sequence_cache.take(sequence, now, before)
        if sequence.admitted is None:
            sequence.match_seconds = self._clock() - began
        if is_taken and (sequence.source is not None or sequence.fetches_only):
            self._fetcher.begin(sequence, now, before)
        return is_taken

    def admit(
        self, sequence: Sequence, builder: StepBuilder, now: float, *, is_newcomer: bool = False
    ) -> None:
        """Start a sequence that has a lease, or add it to the loading sequences."""
        self._queue.take(sequence)
        self._arrivals.came(sequence, is_newcomer=is_newcomer)
        sequence.leased = now
        if sequence.may_start:
            self._start(sequence, builder, now)
        else:
            self.loading.append(sequence)

    def start_loaded(self, sequence: Sequence, builder: StepBuilder, now: float) -> None:
        """Start a sequence in a batch slot. Its blocks have been loaded."""
        self.loading.remove(sequence)
        waited = now - sequence.leased - sequence.fetch_seconds
        sequence.load_seconds += max(waited, 0.0)
        self._start(sequence, builder, now)

    def start_over(self, sequence: Sequence, now: float) -> None:
        """Put a sequence back at the front of its flow's queue, because its loads failed."""
        self.stop(sequence, now)
        self.num_failed_loads += 1
        sequence.loads = "never"  # another load could fail too
        self._queue.push_front(sequence)

    def preempt(self, sequence: Sequence, now: float) -> None:
        """Release a sequence's blocks, and put it back at the front of its flow's queue."""
        self.stop(sequence, now)
        self.num_preemptions += 1
        self._queue.push_front(sequence)

    def stop(self, sequence: Sequence, now: float) -> None:
        """Remove a running, loading or waiting sequence. Its committed blocks stay in the tree."""
        if sequence.lease is None:
            self._queue.remove(sequence)
        else:
            self._vacate(sequence, now)
            self._sequence_cache.give_back(sequence, now)

    def expel(self, sequence: Sequence, now: float) -> None:
        """Remove a running sequence, and remove its computed blocks from the tree."""
        self._vacate(sequence, now)
        self._sequence_cache.discard(sequence, now)

    def _vacate(self, sequence: Sequence, now: float) -> None:
        self._arrivals.went(sequence, now)
        if sequence.is_fetching:
            self._fetcher.leave(sequence, now)
        if sequence.batch_slot is None:
            self.loading.remove(sequence)
            return
        self.running.remove(sequence)
        self._drafting.ended(sequence)
        self._free_batch_slots.append(sequence.batch_slot)
        sequence.batch_slot = None

    def _start(self, sequence: Sequence, builder: StepBuilder, now: float) -> None:
        insort(self.running, sequence, key=attrgetter("arrived"))
        sequence.batch_slot = self._free_batch_slots.pop()
        lease = lease_of(sequence)
        if sequence.admitted is None:
            sequence.admitted = now
            if sequence.is_counted:
                self._count(sequence, now)
                if self._sentinel is not None:
                    self._sentinel.started(sequence, now)
        builder.moves.extend(lease.moves)
        builder.copies.extend(self._sequence_cache.copies(sequence))
        builder.started.append(sequence)
        charge_cached(self._queue, sequence, sequence.num_computed)
        charge_row(self._queue, builder.add(sequence))

    def _count(self, sequence: Sequence, now: float) -> None:
        tokens = sequence.num_before + sequence.prompt_len
        found = sequence.found_with_modules
        self._counters.admitted(sequence.flow, tokens, found, now, fetched=sequence.fetched)
