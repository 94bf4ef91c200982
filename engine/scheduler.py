"""What runs in this step, under one budget of tokens.

There is no prefill phase and no decode phase. A sequence has `num_tokens` known tokens, of which
`num_computed` have their KV; a step gives each scheduled sequence some of the difference:

    1. sequences with one token to go: the decodes. They always fit: max_running <= budget.
       That token may be pending: lengths are known before values are. Where there are any, what
       is left of the budget may be lowered, since they all wait for the whole step.
    2. running sequences with more to go: chunks of what the budget leaves.
    3. waiting sequences, in the queue's order, while budget, places and blocks last.

Chunked prefill, mixed batches, prefix hits and resuming after preemption all fall out of that.

When a running sequence finds no room to grow, the latest arrival gives its blocks back and
waits at the front of its flow. So the eldest always gets on, and it always fits alone.

Both may meet a sequence with a row on its way: the row's result is dropped, and its tokens are
computed again. Its blocks may be handed out at once, since the device runs all of the engine's
work in the order it was launched: what the stray row writes lies before what the next owner
writes.

Knows: budgets and the order of sequences. Does not know: tensors, tokens' values, or what
follows from a step (`settle.py`). It does not touch `num_computed` either: that is settled.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from operator import attrgetter

from engine.holdings import Holdings, lease_of
from engine.queue import FairQueue
from engine.seats import Seats
from engine.sequence import Sequence
from engine.stats import Meter
from engine.step import Row, Step
from storage.move import Move

# Prices in a flow's credit; a computed token costs 1.
CACHED_TOKEN_COST = 1 / 16
OUTPUT_TOKEN_COST = 2.0


class SchedulerStuck(RuntimeError):
    """Nothing runs, and what waits cannot start: a defect of the engine."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Bounds of one step: tokens computed, sequences running, and tokens beside decodes."""

    max_batch_tokens: int
    max_running: int
    beside_decodes: int | None = None  # of all other rows; None: what decodes leave

    def __post_init__(self) -> None:
        if self.beside_decodes is not None and self.beside_decodes < 1:
            raise ValueError("beside decodes some other token has to be computed")
        if not 0 < self.max_running <= self.max_batch_tokens:
            raise ValueError("every running sequence needs a token of the step's budget")


@dataclass(slots=True)
class _Plan:
    """A step in the making."""

    budget: int
    rows: list[Row] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    def add(self, sequence: Sequence) -> Row:
        num_new = min(_num_to_compute(sequence), self.budget)
        row = Row(sequence, sequence.num_computed, num_new)
        self.rows.append(row)
        self.budget -= num_new
        return row

    def step(self) -> Step:
        rows = sorted(self.rows, key=_is_chunk)
        return Step(tuple(rows), tuple(self.moves))


class Scheduler:
    """Waiting and running sequences, and who of them runs next. One owner thread."""

    def __init__(
        self, queue: FairQueue, holdings: Holdings, limits: StepLimits, meter: Meter
    ) -> None:
        self.queue = queue
        self.running: list[Sequence] = []  # in order of arrival
        self.num_preemptions = 0
        self.holdings = holdings
        self._limits = limits
        self._meter = meter
        self._seats = Seats(limits.max_running)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self.running and not self.queue

    def schedule(self, now: float, *, max_tokens: int | None = None) -> Step:
        """Decide the next step; `max_tokens` lowers its budget, though never below decodes."""
        budget = self._limits.max_batch_tokens
        if max_tokens is not None:
            budget = max(min(budget, max_tokens), self._limits.max_running)
        plan = _Plan(budget)
        preempted = self.num_preemptions
        self._continue_decodes(plan, now)
        if plan.rows and self._limits.beside_decodes is not None:
            plan.budget = min(plan.budget, self._limits.beside_decodes)
        self._continue_chunks(plan)
        if self.num_preemptions == preempted:  # else the freed blocks are spoken for
            self._admit(plan, now)
        return plan.step()

    def preempt(self, sequence: Sequence, now: float) -> None:
        """Take the blocks of a running sequence and let it wait at the front of its flow."""
        self.stop(sequence, now)
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self.queue.push_front(sequence)

    def stop(self, sequence: Sequence, now: float) -> None:
        """Take a sequence out, running or waiting; its blocks stay in the tree."""
        if sequence.lease is None:
            self.queue.remove(sequence)
        else:
            self._stand_up(sequence)
            self.holdings.give_back(sequence, now)

    def expel(self, sequence: Sequence, now: float) -> None:
        """Take a running sequence out and forget the blocks that it computed."""
        self._stand_up(sequence)
        self.holdings.discard(sequence, now)

    def _stand_up(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        if sequence.seat is not None:
            self._seats.give_back(sequence.seat)
            sequence.seat = None

    def _continue_decodes(self, plan: _Plan, now: float) -> None:
        """Rows for sequences with one token to go, the eldest first.

        A victim is always younger than who needs its room, so none is in the plan yet.
        """
        for sequence in tuple(self.running):
            is_running = sequence.lease is not None  # not preempted by an elder just now
            if is_running and _num_to_compute(sequence) == 1 and self._make_room(sequence, now):
                plan.add(sequence)
        self._charge_decodes(plan.rows)

    def _make_room(self, sequence: Sequence, now: float) -> bool:
        """Room for a sequence's last token; False when it had to give way itself."""
        while not self.holdings.grow(sequence, now):
            victim = self.running[-1]
            self.preempt(victim, now)
            if victim is sequence:
                return False
        return True

    def _continue_chunks(self, plan: _Plan) -> None:
        """Rows for sequences with more tokens to go, whose blocks were leased at admission."""
        for sequence in self.running:
            if plan.budget and _num_to_compute(sequence) > 1:
                self._charge(plan.add(sequence))

    def _admit(self, plan: _Plan, now: float) -> None:
        while plan.budget and len(self.running) < self._limits.max_running:
            sequence = self.queue.select(lambda waiting: self.holdings.look_up(waiting, now))
            if sequence is None or not self.holdings.take(sequence, now):
                break
            self.queue.take(sequence)
            self._start(sequence, plan, now)
        if self.queue and not self.running:
            raise SchedulerStuck(f"{len(self.queue)} sequences wait and none can start")

    def _start(self, sequence: Sequence, plan: _Plan, now: float) -> None:
        insort(self.running, sequence, key=attrgetter("arrived"))
        sequence.seat = self._seats.take()
        lease = lease_of(sequence)
        if sequence.admitted is None:
            sequence.admitted = now
            sequence.cached_tokens = min(lease.cached_tokens, sequence.prompt_len)
            self._meter.admitted(sequence.flow, sequence.prompt_len, sequence.cached_tokens, now)
        plan.moves.extend(lease.moves)
        self.queue.charge(sequence, CACHED_TOKEN_COST * lease.cached_tokens)
        self._charge(plan.add(sequence))

    def _charge(self, row: Row) -> None:
        """Computed tokens in full; the token that the row will sample by its own price."""
        self.queue.charge(row.sequence, row.num_new + (OUTPUT_TOKEN_COST - 1) * row.samples)

    def _charge_decodes(self, rows: list[Row]) -> None:
        """The same for rows of one token, a flow at a time."""
        rows_of: dict[str, list[Row]] = {}
        for row in rows:
            rows_of.setdefault(row.sequence.flow, []).append(row)
        for of_flow in rows_of.values():
            sampled = sum(row.samples for row in of_flow)
            cost = len(of_flow) + (OUTPUT_TOKEN_COST - 1) * sampled
            self.queue.charge(of_flow[0].sequence, cost)


def _num_to_compute(sequence: Sequence) -> int:
    """Tokens to go; none for a sequence whose last token is known or on its way."""
    return 0 if sequence.is_full else sequence.length - sequence.num_computed


def _is_chunk(row: Row) -> bool:
    return row.num_new > 1
