"""The choice of rows for a step, under one token budget.

There is no prefill phase and no decode phase. A sequence has `num_tokens` known tokens, of which
`num_computed` have their KV; a step gives each scheduled sequence some of the difference:

    1. sequences with one token to go: the decodes. They always fit: max_running <= budget.
       That token may be pending: lengths are known before values are. A sequence whose mask was too
       late for a step gets a row again once the mask is made. Where stages compute several steps at
       once (`ranks`), each step has a part of the decodes, and a decode with a pending token waits
       for the token's value.
    2. newcomers (`arrivals.py`), those with the fewest tokens first: sequences of flows that owe
       little (`FairQueue.newcomer`), and that come and go while other flows are always there. So
       such a flow waits for no more than the step under way, whatever load other flows bring. If
       all batch slots are taken, the flow with the most slots gives one up.
    3. the other prompts. First, one waiting prompt of each flow that has no running sequence and
       owes little. Second, prompts that an earlier step began, in order of arrival, and within a
       flow the shortest first; in the flow's turn, a shorter waiting prompt goes before them.
       Third, prompts whose prefix has been loaded from a lower tier, which hold their blocks
       already. Last, waiting prompts in the queue's order, while budget, batch slots and blocks
       last. A sequence whose prefix must be loaded first is set aside with its lease and delays no
       other sequence: it takes neither budget nor a row until the load has ended.

How many tokens newcomers and other prompts get is one decision (`prefill_budget.py`).

Chunked prefill, mixed batches, prefix hits and resuming after preemption all follow from these
rules.

When a running sequence finds no free block to grow, the latest arrival, running or loading, gives
its blocks back and waits at the front of its flow. So the oldest sequence always makes progress,
and it always fits alone. If copies that hold blocks end soon, the sequence skips a step instead. In
a step without blocks for all decodes, only flows without running sequences start prompts: one
flow's lack of blocks keeps no other flow waiting.

A load that fails sends its sequence to the front of its flow, to start over without loads.

Knows: budgets and the order of sequences. Does not know: how a sequence starts and leaves
(`active.py`), tensors, tokens' values, or the effects of a finished step (`settle.py`). It does not
change `num_computed`: `settle.py` does.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter

from engine.drafting.draft import Draft, Drafting, NoDrafts
from engine.scheduling.active import ActiveSequences, slot_victim
from engine.scheduling.counters import EngineCounters
from engine.scheduling.fairness.arrivals import Arrivals
from engine.scheduling.fairness.costs import charge_decodes, charge_row, refund_row
from engine.scheduling.fairness.partial_prompts import in_turn, pass_over, without_row
from engine.scheduling.fairness.queue import FairQueue, Rank
from engine.scheduling.fetching import Fetcher
from engine.scheduling.gap_targets import GapTargets
from engine.scheduling.prefill_budget import PrefillBudget, WaitingPrompts
from engine.scheduling.scheduled_rows import Scheduled, ScheduledRow, is_decoding, remaining_tokens
from engine.scheduling.step_builder import StepBuilder, StepLimits
from engine.scheduling.step_drafts import StepDrafts
from engine.scheduling.step_times import StepShape, StepTimes
from engine.sentinel.sentinel import Sentinel
from engine.sequences.sequence import Sequence
from engine.sequences.sequence_cache import SequenceCache, lease_of


class SchedulerStuck(RuntimeError):
    """Defect: no sequence runs and no waiting sequence can start."""


class Scheduler:
    """Scheduler of waiting and running sequences into steps. One owner thread."""

    def __init__(
        self,
        queue: FairQueue,
        sequence_cache: SequenceCache,
        limits: StepLimits,
        times: StepTimes,
        counters: EngineCounters,
        fetcher: Fetcher,
        clock: Callable[[], float] = time.monotonic,
        drafting: Drafting | None = None,
        sentinel: Sentinel | None = None,
    ) -> None:
        self.queue = queue
        drafting = drafting or NoDrafts()
        self._drafts = StepDrafts(drafting, limits)
        self.sequence_cache = sequence_cache
        self._arrivals = Arrivals()
        self.active = ActiveSequences(
            queue,
            sequence_cache,
            self._arrivals,
            fetcher,
            counters,
            clock,
            drafting,
            sentinel,
            max_running=limits.max_running,
        )
        self._fetcher = fetcher
        self._limits = limits
        self._prefill = PrefillBudget(limits, times)
        self.gap_targets = GapTargets(limits, times)

    @property
    def running(self) -> list[Sequence]:
        """Sequences with a batch slot, in order of arrival."""
        return self.active.running

    @property
    def loading(self) -> list[Sequence]:
        """Sequences that wait for loads or fetches, in order of admission."""
        return self.active.loading

    def has_any_of(self, flow: str) -> bool:
        """Return whether a flow has a running, loading or waiting sequence."""
        return self._arrivals.is_alive(flow) or self.queue.num_waiting(flow) > 0

    @property
    def is_bounded(self) -> bool:
        """True if the length of steps is bounded for the sequences that decode."""
        return (self._limits.max_step_s, self._limits.target_itl_s) != (None, None)

    def _expected(self, now: float) -> int | None:
        return self._arrivals.expected(now, lambda flow: self.queue.num_waiting(flow) > 0)

    def schedule(self, now: float, *, max_tokens: int | None = None) -> Scheduled:
        """Decide the next step; `max_tokens` lowers its budget, but never below its decodes."""
        budget = self._limits.max_batch_tokens
        if max_tokens is not None:
            budget = max(min(budget, max_tokens), self._limits.max_running)
        builder = StepBuilder(budget)
        has_room = self._continue_decodes(builder, now)
        if self.queue or self.loading or len(self.running) > len(builder.rows):
            target_s = self.gap_targets.of_step(builder.rows)
            self._add_prompts(builder, now, target_s, has_room=has_room)
            for rest in (*self._cut(builder, target_s), *builder.stop_at_states()):
                refund_row(self.queue, rest)
        return builder.step()

    def _cut(self, builder: StepBuilder, target_s: float | None) -> list[ScheduledRow]:
        """Cut rows of prompts that would make the step longer than its target."""
        keep = None if target_s is None else self._prefill.tokens_within(builder.rows, target_s)
        return [] if keep is None else builder.cut(keep)

    def _add_prompts(
        self, builder: StepBuilder, now: float, target_s: float | None, *, has_room: bool
    ) -> None:
        """Add rows for newcomers, then for other prompts.

        Without `has_room`, only flows without running sequences may take free blocks.
        """
        decodes, most = StepShape.of(builder.rows), builder.budget
        newcomers = 0
        if not self._prefill.is_others_turn:
            allowed = builder.budget = self._prefill.of_newcomers(decodes, most, target_s)
            has_room = self._admit_first(builder, now, are_newcomers=True) and has_room
            self._continue_newcomers(builder, now)
            most -= allowed - builder.budget  # tokens of added rows, less dropped rows
            newcomers = max(allowed - builder.budget, 0)
        waiting, returning = self._waiting(builder), self._expected(now)
        others = self._prefill.of_others(decodes, newcomers, waiting, returning, most, target_s)
        builder.budget = others
        has_room = self._admit_first(builder, now) and has_room
        self._compute_partial(builder, now, has_room=has_room)
        self._board(builder, now, self.loading)
        if has_room:
            self._admit(builder, now)
        self._prefill.decided(newcomers, others - builder.budget, others_wait=any(waiting))

    def _waiting(self, builder: StepBuilder) -> WaitingPrompts:
        scheduled = without_row(builder, self.running)
        return WaitingPrompts(
            len(scheduled), sum(map(remaining_tokens, scheduled)), len(self.queue)
        )

    def _compute(self, builder: StepBuilder, sequences: Iterable[Sequence]) -> None:
        """Add rows for started prompts without a row, up to the budget."""
        for sequence in without_row(builder, sequences):
            if builder.budget and sequence.batch_slot is not None:
                charge_row(self.queue, builder.add(sequence))

    def _compute_partial(self, builder: StepBuilder, now: float, *, has_room: bool) -> None:
        """Continue prompts of earlier steps, and start shorter waiting prompts before them."""
        for prompt in in_turn(without_row(builder, self.running), self.queue.is_overdue):
            shorter = partial(self.queue.shorter, prompt, remaining_tokens(prompt))
            while has_room and self._admit_one(builder, now, shorter):
                pass_over(without_row(builder, self.running), prompt)
            self._compute(builder, [prompt])

    def _continue_decodes(self, builder: StepBuilder, now: float) -> bool:
        """Add rows for sequences with one token to compute, the oldest first.

        A victim is always younger than the sequence that needs its blocks, so no victim is in the
        step yet. Return whether all decodes got their blocks without a preemption.
        """
        preempted, has_room = self.active.num_preemptions, True
        decodes = self._decodes()
        drafts = self._drafts.propose(decodes) if self._may_draft() else {}
        for sequence in decodes:
            is_running = sequence.lease is not None  # not just preempted by an older sequence
            if is_running and not sequence.awaits_mask:
                if self._make_room(sequence, now):
                    self._decode(sequence, drafts.get(sequence), builder, now)
                else:
                    has_room = False
        charge_decodes(self.queue, builder.rows)
        return has_room and self.active.num_preemptions == preempted

    def _decode(
        self, sequence: Sequence, draft: Draft | None, builder: StepBuilder, now: float
    ) -> None:
        """Add the row of one decode, with its draft if blocks are free for it."""
        if draft and self.sequence_cache.grow(sequence, now, drafts=len(draft.token_ids)):
            builder.verify(sequence, draft)
        else:
            builder.add(sequence)

    @property
    def is_drafting(self) -> bool:
        """True if launched steps should be settled first: the next step likely has drafts."""
        return self._may_draft() and self._drafts.are_likely(self._decodes())

    def _may_draft(self) -> bool:
        """Return whether the next step may have drafts: a step with prompts has none."""
        running = self.running
        if self.queue or not self._drafts.may_have(len(running)):
            return False
        return all(map(is_decoding, running))

    def _decodes(self) -> list[Sequence]:
        """Return the sequences that a step continues by one token, the oldest first."""
        decodes = [one for one in self.running if is_decoding(one)]
        stages = self._limits.stages
        if stages == 1:
            return decodes
        return [one for one in decodes if not one.num_pending][: -(-len(decodes) // stages)]

    def _make_room(self, sequence: Sequence, now: float) -> bool:
        """Find a block for a sequence's last token; False: the sequence was preempted, or waits."""
        while not self.sequence_cache.grow(sequence, now):
            if self.sequence_cache.is_room_coming(sequence):
                return False
            victim = self._victim(sequence)
            self.active.preempt(victim, now)
            if victim is sequence:
                return False
        return True

    def _victim(self, sequence: Sequence) -> Sequence:
        """Choose the latest arrival, if possible one with blocks that `sequence` may use."""
        loading = [one for one in self.loading if one.arrived >= sequence.arrived]
        younger = [*loading, *reversed(self.running[self.running.index(sequence) :])]
        giving = [one for one in younger if self.sequence_cache.makes_room(one)]
        return max(giving or younger, key=attrgetter("arrived"))

    def _continue_newcomers(self, builder: StepBuilder, now: float) -> None:
        """Add rows for newcomers with prompts of several steps, or with loaded prompts."""
        newcomers = self._arrivals.newcomers()
        if newcomers:
            self._board(builder, now, newcomers)
            self._compute(builder, newcomers)

    def _board(self, builder: StepBuilder, now: float, sequences: Iterable[Sequence]) -> None:
        """Start sequences whose blocks have arrived, and restart those whose loads failed."""
        for sequence in [one for one in sequences if one.is_loading]:
            lease = lease_of(sequence)
            if lease.failed:
                self.active.start_over(sequence, now)
            elif (
                sequence.may_start
                and builder.budget
                and self._find_batch_slot(sequence, builder, now)
            ):
                self.active.start_loaded(sequence, builder, now)

    def _admit_first(
        self, builder: StepBuilder, now: float, *, are_newcomers: bool = False
    ) -> bool:
        """Admit the first sequence of each flow that has no running sequence and little debt.

        Return False if blocks that become free should be kept for one of these sequences.
        """
        if not self.queue:
            return True
        present = Counter[str]()  # uncomputed tokens of each flow's sequences
        for one in (*self.running, *self.loading):
            present[one.flow] += remaining_tokens(one)
        while builder.budget:
            before = self.active.remaining_tokens()
            rank = partial(self._rank, now=now, before=before, are_newcomers=are_newcomers)
            sequence = self.queue.newcomer(present, rank)
            if sequence is None or not self._could_sit(sequence, builder):
                return True
            if not self._take_of_others(sequence, builder, now, before):
                return not present
            present[sequence.flow] += remaining_tokens(sequence)
            if sequence.may_start:
                self._find_batch_slot(sequence, builder, now)
            is_newcomer = self._arrivals.is_newcomer(sequence)
            self._start(sequence, builder, now, is_newcomer=is_newcomer)
        return True

    def _rank(
        self, sequence: Sequence, now: float, before: int, *, are_newcomers: bool
    ) -> int | None:
        if are_newcomers and not self._arrivals.is_newcomer(sequence):
            return None
        return self.sequence_cache.look_up(sequence, now, before)

    def _take_of_others(
        self, sequence: Sequence, builder: StepBuilder, now: float, before: int
    ) -> bool:
        """Lease a waiting sequence's blocks, preempting others if need be; False: not now."""
        while not self.active.take(sequence, now, before):
            giving = [one for one in self.running if self.sequence_cache.makes_room(one)]
            victim = slot_victim(giving, sequence.flow, builder.started)
            if victim is None or self.sequence_cache.is_room_coming(sequence):
                return False
            self._send_back(victim, builder, now)
        return True

    def _could_sit(self, sequence: Sequence, builder: StepBuilder) -> bool:
        if not self.active.is_full:
            return True
        return slot_victim(self.running, sequence.flow, builder.started) is not None

    def _find_batch_slot(self, sequence: Sequence, builder: StepBuilder, now: float) -> bool:
        """Free a batch slot for `sequence` if all are taken; False: impossible now."""
        if self.active.is_full:
            victim = slot_victim(self.running, sequence.flow, builder.started)
            if victim is None:
                return False
            self._send_back(victim, builder, now)
        return True

    def _send_back(self, victim: Sequence, builder: StepBuilder, now: float) -> None:
        builder.drop(victim)
        self.active.preempt(victim, now)

    def _start(
        self, sequence: Sequence, builder: StepBuilder, now: float, *, is_newcomer: bool = False
    ) -> None:
        self._prefill.admitted(remaining_tokens(sequence), sequence.num_computed)
        self.active.admit(sequence, builder, now, is_newcomer=is_newcomer)

    def _admit_one(
        self, builder: StepBuilder, now: float, choose: Callable[[Rank], Sequence | None]
    ) -> bool:
        """Start the sequence that `choose` returns; False: no sequence, or not possible now."""
        most = self._limits.max_running
        if not builder.budget or max(len(self.running), len(self.loading)) >= most:
            return False
        before = self.active.remaining_tokens()
        sequence = choose(partial(self.sequence_cache.look_up, now=now, before=before))
        if sequence is None or not self.active.take(sequence, now, before):
            return False
        self._start(sequence, builder, now)
        return True

    def _admit(self, builder: StepBuilder, now: float) -> None:
        while self._admit_one(builder, now, self.queue.select):
            pass
        is_still = not (
            self.running
            or self.loading
            or self.sequence_cache.copies_under_way
            or self._fetcher.is_exporting
        )
        if self.queue and is_still and not any(one.is_unready for one in self.queue):
            raise SchedulerStuck(f"{len(self.queue)} sequences wait and none can start")
