"""The starts of waiting sequences, and the preemptions that make room for sequences.

    admit_first   the first sequence of each flow with no running sequence and little debt
    admit         other sequences in the queue's order, while there is room
    admit_behind  then sequences of flows that use less than their part. These flows take blocks
                  back (`fairness/parts.py`), even while there is no room for other flows
    make_room     a block for the next token of a running sequence

A preempted sequence goes to the front of its flow's queue.

Elsewhere: the number of prompt tokens (`prefill_budget.py`), and the order of these calls
(`scheduler.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from engine.scheduling.active import ActiveSequences
from engine.scheduling.fairness.arrivals import Arrivals
from engine.scheduling.fairness.parts import BlockParts, SlotParts, latest
from engine.scheduling.fairness.queue import FairQueue, Rank
from engine.scheduling.fetching import Fetcher
from engine.scheduling.prefill_budget import PrefillBudget
from engine.scheduling.scheduled_rows import remaining_tokens
from engine.scheduling.step_builder import StepBuilder
from engine.sequences.sequence import Sequence
from engine.sequences.sequence_cache import SequenceCache, lease_of


class SchedulerStuck(RuntimeError):
    """An error of the engine: no sequence runs and no waiting sequence can start."""


class SequenceStarts:
    """The starts of sequences, and the preemptions for them. Used by one thread only."""

    def __init__(
        self,
        queue: FairQueue,
        sequence_cache: SequenceCache,
        active: ActiveSequences,
        arrivals: Arrivals,
        prefill: PrefillBudget,
        fetcher: Fetcher,
        *,
        max_running: int,
    ) -> None:
        self._queue = queue
        self._sequence_cache = sequence_cache
        self._active = active
        self._arrivals = arrivals
        self._prefill = prefill
        self._fetcher = fetcher
        self._max_running = max_running

    def admit_first(self, builder: StepBuilder, now: float, *, are_newcomers: bool = False) -> bool:
        """Admit the first sequence of each flow with no running sequence and little debt.

        Return False if a sequence found no room and free blocks should be kept for it.
        """
        if not self._queue:
            return True
        present = self._present()
        while builder.budget:
            before = self._active.remaining_tokens()
            rank = partial(self._rank, now=now, before=before, are_newcomers=are_newcomers)
            sequence = self._queue.newcomer(present, rank)
            if sequence is None or not self._could_sit(sequence, builder, now):
                return True
            if not self._take_of_others(sequence, builder, now, before):
                return not present
            present[sequence.flow] += remaining_tokens(sequence)
            if sequence.may_start:
                self._find_batch_slot(sequence, builder, now)
            is_newcomer = self._arrivals.is_newcomer(sequence)
            self._start(sequence, builder, now, is_newcomer=is_newcomer)
        return True

    def admit(self, builder: StepBuilder, now: float) -> None:
        """Admit sequences in the queue's order while there is room.

        Raises SchedulerStuck if no sequence can ever start.
        """
        while self.admit_next(builder, now, self._queue.select):
            pass
        is_still = not (
            self._active.holding
            or self._sequence_cache.copies_under_way
            or self._fetcher.is_exporting
        )
        if self._queue and is_still and not any(one.is_unready for one in self._queue):
            raise SchedulerStuck(f"{len(self._queue)} sequences wait and none can start")

    def admit_next(
        self, builder: StepBuilder, now: float, choose: Callable[[Rank], Sequence | None]
    ) -> bool:
        """Start the sequence that `choose` returns, if there is a free batch slot and room."""
        return not self._active.is_full and self._admit_one(builder, now, choose)

    def admit_behind(self, builder: StepBuilder, now: float) -> None:
        """Admit sequences of flows that use less than their part, even if other flows wait."""
        while self._queue and len(self._flows()) > 1:
            choose: Callable[[Rank], Sequence | None] = self._with_few_blocks
            if self._is_full:
                choose = partial(self._with_few_slots, builder, now)
            if not self._admit_one(builder, now, choose):
                return

    def board(self, builder: StepBuilder, now: float, sequences: Iterable[Sequence]) -> None:
        """Start sequences whose blocks have arrived, and restart sequences whose loads failed."""
        for sequence in [one for one in sequences if one.is_loading]:
            lease = lease_of(sequence)
            if lease.failed:
                self._active.start_over(sequence, now)
            elif (
                sequence.may_start
                and builder.budget
                and self._find_batch_slot(sequence, builder, now)
            ):
                self._active.start_loaded(sequence, builder, now)

    def make_room(self, sequence: Sequence, builder: StepBuilder, now: float) -> bool:
        """Find a block for the last token of a running sequence.

        Return False if the sequence itself was preempted or must wait.
        """
        while not self._sequence_cache.grow(sequence, now):
            if self._sequence_cache.is_room_coming(sequence):
                return False
            victim = self._victim(sequence)
            self._send_back(victim, builder, now)
            if victim is sequence:
                return False
        return True

    def _admit_one(
        self, builder: StepBuilder, now: float, choose: Callable[[Rank], Sequence | None]
    ) -> bool:
        if not builder.budget:
            return False
        before = self._active.remaining_tokens()
        rank: Rank = partial(self._sequence_cache.look_up, now=now, before=before)
        if len(self._active.loading) >= self._max_running:
            rank = self._with_few_loads(rank)
        sequence = choose(rank)
        if sequence is None or not self._take_of_others(sequence, builder, now, before):
            return False
        if sequence.may_start:
            self._find_batch_slot(sequence, builder, now)
        self._start(sequence, builder, now)
        return True

    def _start(
        self, sequence: Sequence, builder: StepBuilder, now: float, *, is_newcomer: bool = False
    ) -> None:
        self._prefill.admitted(remaining_tokens(sequence), sequence.num_computed)
        self._active.admit(sequence, builder, now, is_newcomer=is_newcomer)

    def _rank(
        self, sequence: Sequence, now: float, before: int, *, are_newcomers: bool
    ) -> int | None:
        if are_newcomers and not self._arrivals.is_newcomer(sequence):
            return None
        return self._sequence_cache.look_up(sequence, now, before)

    def _present(self) -> Counter[str]:
        present = Counter[str]()
        for one in self._active.holding:
            present[one.flow] += remaining_tokens(one)
        return present

    def _flows(self) -> set[str]:
        return {one.flow for one in self._active.holding}.union(self._queue.waiting_flows())

    def _with_few_loads(self, rank: Rank) -> Rank:
        """Exclude sequences of flows that have their maximum number of loading sequences.

        Otherwise the loads of one flow could prevent sequences of other flows from starting.
        """
        loading = Counter(one.flow for one in self._active.loading)
        part = max(self._max_running // len(self._flows()), 1)
        return lambda one: rank(one) if loading[one.flow] < part else None

    def _with_few_slots(self, builder: StepBuilder, now: float, rank: Rank) -> Sequence | None:
        slots = self._slots(builder)

        def rank_taking(one: Sequence) -> int | None:
            is_taking = self._is_visiting(one, now) and slots.victim(one, is_visiting=True)
            return rank(one) if is_taking else None

        return self._queue.owing_little(self._present(), rank_taking)

    def _with_few_blocks(self, rank: Rank) -> Sequence | None:
        parts = BlockParts(self._sequence_cache)

        def rank_within(one: Sequence) -> int | None:
            cached = rank(one)
            return cached if parts.fits(one) else None

        sequence = self._queue.select(rank_within)
        first = None if sequence is None else self._queue.select(rank)
        return None if first is None or self._sequence_cache.runs_alone(first) else sequence

    @property
    def _is_full(self) -> bool:
        return self._active.is_full or self._sequence_cache.is_short_of_states()

    def _take_of_others(
        self, sequence: Sequence, builder: StepBuilder, now: float, before: int
    ) -> bool:
        while not self._active.take(sequence, now, before):
            victim = self._giving(sequence, builder, now)
            if victim is None:
                return False
            self._send_back(victim, builder, now)
        return True

    def _giving(self, sequence: Sequence, builder: StepBuilder, now: float) -> Sequence | None:
        if self._sequence_cache.is_short_of_states():
            return self._giving_slot(sequence, builder, now)
        if self._sequence_cache.is_room_coming(sequence):
            return None
        spared = {id(one) for one in builder.started}
        others = (one for one in self._active.holding if id(one) not in spared)
        is_visiting = self._is_visiting(sequence, now)
        return BlockParts(self._sequence_cache).victim(sequence, others, is_visiting=is_visiting)

    def _giving_slot(self, sequence: Sequence, builder: StepBuilder, now: float) -> Sequence | None:
        is_visiting = self._is_visiting(sequence, now)
        return self._slots(builder).victim(sequence, is_visiting=is_visiting)

    def _slots(self, builder: StepBuilder) -> SlotParts:
        active = self._active
        return SlotParts(active.running if active.is_full else active.holding, builder.started)

    def _is_visiting(self, sequence: Sequence, now: float) -> bool:
        flow = sequence.flow
        return not self._arrivals.is_alive(flow) or self._arrivals.is_visiting(flow, now)

    def _could_sit(self, sequence: Sequence, builder: StepBuilder, now: float) -> bool:
        return not self._active.is_full or self._giving_slot(sequence, builder, now) is not None

    def _find_batch_slot(self, sequence: Sequence, builder: StepBuilder, now: float) -> bool:
        if self._active.is_full:
            victim = self._giving_slot(sequence, builder, now)
            if victim is None:
                return False
            self._send_back(victim, builder, now)
        return True

    def _send_back(self, victim: Sequence, builder: StepBuilder, now: float) -> None:
        builder.drop(victim)
        self._active.preempt(victim, now)

    def _victim(self, sequence: Sequence) -> Sequence:
        """Choose the sequence that is preempted for a running sequence's next token.

        It is a sequence of a flow that uses more than its part, else the latest arrival.
        """
        active, parts = self._active, BlockParts(self._sequence_cache)
        of_others = parts.victim(sequence, active.holding, is_visiting=False)
        if of_others is not None:
            return of_others
        younger = [one for one in active.loading if one.arrived >= sequence.arrived]
        younger += active.running[active.running.index(sequence) + 1 :]
        own = [one for one in younger if one.flow == sequence.flow]
        beyond = [one for one in younger if parts.is_beyond(one.flow)]
        if not parts.fits(sequence):
            beyond.insert(0, sequence)
        return latest(own or beyond or (sequence, *younger))
