"""What runs in this step, under one budget of tokens.

There is no prefill phase and no decode phase. A sequence has `num_tokens` known tokens, of which
`num_computed` have their KV; a step gives each scheduled sequence some of the difference:

    1. sequences with one token to go: the decodes. They always fit: max_running <= budget.
       That token may be pending: lengths are known before values are. Where there are any, what
       is left of the budget may be lowered, since they all wait for the whole step.
    2. one waiting sequence of each flow that has none running and owes little (`newcomer` of the
       queue): it waits for the step under way and no more, whatever others came with. Where all
       seats are taken, the flow with the most gives one. Others then get as much of the step as
       the newcomers, or a small part of it.
    3. the rest of what visitors began (`visitors.py`). While there are any, or some may return to
       a flood, others get less of the step from here on.
    4. from here on the budget may be lowered again, so that what waits is spread over some steps
       (`backlog.py`).
    5. running sequences with more to go (`chunks.py`): chunks of what the budget leaves, of half
       of it while other flows wait that have no chunk running, so that nobody's long prompts hold
       up the others.
    6. sequences whose prefix has come up from a lower tier: they hold their blocks already.
    7. waiting sequences, in the queue's order, while budget, places and blocks last. One whose
       prefix has to come up first is set aside with its lease and holds up nobody: it takes
       neither budget nor a row before all is there.

Chunked prefill, mixed batches, prefix hits and resuming after preemption all fall out of that.

When a running sequence finds no room to grow, the latest arrival, running or loading, gives its
blocks back and waits at the front of its flow. So the eldest always gets on, and it always fits
alone. Where the room is only waiting for copies to end, the sequence sits out a step instead.

A load that fails sends its sequence to the front of its flow, to start over without loads.

Knows: budgets and the order of sequences. Does not know: how one comes and goes (`active.py`),
tensors, tokens' values, or what follows from a step (`settle.py`). It does not touch
`num_computed` either: that is settled.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter

from engine.active import ActiveSequences
from engine.backlog import Backlog
from engine.charges import charge_decodes
from engine.chunks import Chunks
from engine.crowd import begun_by_flow, who_gives
from engine.draft import Draft, StepLimits, tokens_to_go
from engine.holdings import Holdings, lease_of
from engine.queue import FairQueue
from engine.sequence import Sequence
from engine.stats import Meter
from engine.step import Step
from engine.visitors import Visitors

# Of a step's budget others may have one part in so many beside newcomers, or as much as these.
BESIDE_NEWCOMERS = 8


class SchedulerStuck(RuntimeError):
    """Nothing runs, and what waits cannot start: a defect of the engine."""


class Scheduler:
    """Who of the waiting and the running sequences is in the next step. One owner thread."""

    def __init__(
        self,
        queue: FairQueue,
        holdings: Holdings,
        limits: StepLimits,
        meter: Meter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queue = queue
        self.holdings = holdings
        self.visitors = Visitors(limits)
        self.active = ActiveSequences(
            queue, holdings, self.visitors, meter, clock, max_running=limits.max_running
        )
        self._limits = limits
        self._chunks = Chunks(queue)
        self._backlog = Backlog(limits.backlog_steps)

    @property
    def running(self) -> list[Sequence]:
        """Sequences with a seat, in order of arrival."""
        return self.active.running

    @property
    def loading(self) -> list[Sequence]:
        """Sequences that wait for their loads, in order of admission."""
        return self.active.loading

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not (self.running or self.loading or self.queue)

    def has_any_of(self, flow: str) -> bool:
        """Whether a flow has anything that runs, loads or waits."""
        return self.visitors.is_alive(flow) or self.queue.num_waiting(flow) > 0

    def schedule(self, now: float, *, max_tokens: int | None = None) -> Step:
        """Decide the next step; `max_tokens` lowers its budget, though never below decodes."""
        budget = self._limits.max_batch_tokens
        if max_tokens is not None:
            budget = max(min(budget, max_tokens), self._limits.max_running)
        draft = Draft(budget)
        has_room = self._continue_decodes(draft, now)
        decodes = len(draft.rows)
        if draft.rows and self._limits.beside_decodes is not None:
            draft.budget = min(draft.budget, self._limits.beside_decodes)
        kept = self.visitors.kept_for_others(draft.budget)
        draft.budget -= kept
        if has_room and self.queue:
            has_room = self._admit_newcomers(draft, now)
        else:
            self._continue_visits(draft, now)
        draft.budget += kept
        self._spread(draft, decodes)
        if self._chunks.are_a_flood(self.running):
            draft.budget = self.visitors.for_others(draft, now)
        chunks = self._chunks.go_on(draft, self.running)
        known = len(draft.rows)
        self._board(draft, now, self.loading)
        if has_room:  # else the blocks that come free are spoken for
            self._admit(draft, now)
        if len(draft.rows) == known:  # nobody came for what was kept
            self._chunks.top_up(draft, chunks)
        others_wait = self._chunks.wait(self.running, besides=self.visitors.present())
        self.visitors.decided(draft, others_wait=others_wait)
        return draft.step()

    def _spread(self, draft: Draft, decodes: int) -> None:
        """Lower the budget to what the step should have of the prompts that wait, if any do."""
        if not (self.queue or len(self.running) > decodes):
            return
        present = len(self.running) + len(self.loading) + len(self.queue)
        if not self._backlog.is_spread(decodes, present):
            return
        begun = self._chunks.left(draft, self.running)
        part = self._backlog.part(decodes, begun, len(self.queue))
        if part is not None:
            draft.budget = min(draft.budget, part)

    def _continue_decodes(self, draft: Draft, now: float) -> bool:
        """Rows for sequences with one token to go, the eldest first.

        A victim is always younger than who needs its room, so none is in the draft yet. Returns
        whether there was room for all, and nobody had to give way.
        """
        preempted, has_room = self.active.num_preemptions, True
        for sequence in tuple(self.running):
            is_running = sequence.lease is not None  # not preempted by an elder just now
            if is_running and tokens_to_go(sequence) == 1:
                if self._make_room(sequence, now):
                    draft.add(sequence)
                else:
                    has_room = False
        charge_decodes(self.queue, draft.rows)
        return has_room and self.active.num_preemptions == preempted

    def _make_room(self, sequence: Sequence, now: float) -> bool:
        """Room for a sequence's last token; False: it had to give way itself, or has to wait."""
        while not self.holdings.grow(sequence, now):
            if self.holdings.is_room_coming(sequence):
                return False
            victim = max([*self.loading, self.running[-1]], key=attrgetter("arrived"))
            self.active.preempt(victim, now)
            if victim is sequence:
                return False
        return True

    def _continue_visits(self, draft: Draft, now: float) -> None:
        """Rows for visitors whose prompts take several steps, or had to be loaded first."""
        visitors = self.visitors.present()
        if visitors:
            self._board(draft, now, visitors)
            self._chunks.add(draft, [one for one in visitors if one.seat is not None])

    def _board(self, draft: Draft, now: float, sequences: Iterable[Sequence]) -> None:
        """Start those whose blocks have all come, and send back those whose did not."""
        for sequence in [one for one in sequences if one.is_loading]:
            lease = lease_of(sequence)
            if lease.failed:
                self.active.start_over(sequence, now)
            elif lease.ready and draft.budget and self._find_seat(sequence, draft, now):
                self.active.start_loaded(sequence, draft, now)

    def _admit_newcomers(self, draft: Draft, now: float) -> bool:
        """Whether all that came found room; what comes free belongs to who did not.

        Their first tokens wait for the whole step, so others get little of it.
        """
        present = begun_by_flow([*self.running, *self.loading])
        budget = draft.budget
        has_room = self._let_newcomers_in(draft, present, now)
        taken = budget - draft.budget
        self._continue_visits(draft, now)
        if taken and (len(present) > 1 or self.queue.has_newcomers(set(present))):
            most = max(taken, self._limits.max_batch_tokens // BESIDE_NEWCOMERS)
            draft.budget = min(draft.budget, most)
        return has_room

    def _let_newcomers_in(self, draft: Draft, present: Counter[str], now: float) -> bool:
        while draft.budget:
            before = self.active.tokens_to_go()
            rank = partial(self.holdings.look_up, now=now, before=before)
            sequence = self.queue.newcomer(present, rank)
            if sequence is None or not self._could_sit(sequence, draft):
                return True
            if not self._take_of_others(sequence, draft, now, before):
                return not present
            present[sequence.flow] += tokens_to_go(sequence)
            if lease_of(sequence).ready:
                self._find_seat(sequence, draft, now)
            self.active.admit(sequence, draft, now, is_newcomer=True)
        return True

    def _take_of_others(self, sequence: Sequence, draft: Draft, now: float, before: int) -> bool:
        """Lease a newcomer's blocks and find it a seat; False: not now."""
        while not self.active.take(sequence, now, before):
            giver = who_gives(self.running, sequence.flow, draft.started)
            if giver is None or self.holdings.could_fit(sequence):
                return False
            self._send_back(giver, draft, now)
        return True

    def _could_sit(self, sequence: Sequence, draft: Draft) -> bool:
        if not self.active.is_full:
            return True
        return who_gives(self.running, sequence.flow, draft.started) is not None

    def _find_seat(self, sequence: Sequence, draft: Draft, now: float) -> bool:
        """Find the sequence a seat, if need be another's; False: not now."""
        if self.active.is_full:
            giver = who_gives(self.running, sequence.flow, draft.started)
            if giver is None:
                return False
            self._send_back(giver, draft, now)
        return True

    def _send_back(self, giver: Sequence, draft: Draft, now: float) -> None:
        draft.drop(giver)
        self.active.preempt(giver, now)

    def _admit(self, draft: Draft, now: float) -> None:
        most = self._limits.max_running
        while draft.budget and max(len(self.running), len(self.loading)) < most:
            before = self.active.tokens_to_go()
            rank = partial(self.holdings.look_up, now=now, before=before)
            sequence = self.queue.select(rank)
            if sequence is None or not self.active.take(sequence, now, before):
                break
            self._backlog.admitted(tokens_to_go(sequence))
            self.active.admit(sequence, draft, now)
        is_still = not (self.running or self.loading or self.holdings.copies_under_way)
        if self.queue and is_still:
            raise SchedulerStuck(f"{len(self.queue)} sequences wait and none can start")
