"""The choice of rows for a step, under one token budget.

There is no prefill phase and no decode phase. A sequence has `num_tokens` known tokens. The KV of
`num_computed` tokens is computed. A step computes more of them for each scheduled sequence. Rows
are added in this order:

    1. Decodes, the sequences with one token to compute. The budget has room for all of them.
    2. Newcomers (`arrivals.py`), those with the fewest tokens first.
    3. One waiting prompt of each flow that has no running sequence and little debt.
    4. Prompts that an earlier step has begun, in order of arrival, the shortest of a flow first.
    5. Prompts whose prefix has been loaded from a lower tier.
    6. Waiting prompts in the queue's order, while there are budget, batch slots and blocks.
    7. Prompts of flows that take their part of the blocks back from other flows (`starts.py`).

With several pipeline stages, several steps run at the same time, and each has a part of the
decodes. A sequence whose prefix must be loaded has a lease but no row until the load has ended.

If there is no free block for a running sequence, another sequence is preempted: a sequence of a
flow that uses more than its part of the blocks, else the sequence that arrived last. The oldest
sequence therefore always makes progress. If running copies will free blocks soon, the sequence
skips a step instead.

Only `settle.py` changes `num_computed`, not the scheduler.

Elsewhere: the start and end of sequences (`active.py`), and the effects of a finished step
(`settle.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from engine.drafting.draft import Draft, Drafting, NoDrafts
from engine.scheduling.active import ActiveSequences
from engine.scheduling.counters import EngineCounters
from engine.scheduling.fairness.arrivals import Arrivals
from engine.scheduling.fairness.costs import charge_decodes, charge_row, refund_row
from engine.scheduling.fairness.partial_prompts import in_turn, pass_over, without_row
from engine.scheduling.fairness.queue import FairQueue
from engine.scheduling.fetching import Fetcher
from engine.scheduling.gap_targets import GapTargets
from engine.scheduling.prefill_budget import PrefillBudget, WaitingPrompts
from engine.scheduling.scheduled_rows import Scheduled, ScheduledRow, is_decoding, remaining_tokens
from engine.scheduling.starts import SequenceStarts
from engine.scheduling.step_builder import StepBuilder, StepLimits
from engine.scheduling.step_drafts import StepDrafts
from engine.scheduling.step_times import StepShape, StepTimes
from engine.sentinel.sentinel import Sentinel
from engine.sequences.sequence import Sequence
from engine.sequences.sequence_cache import SequenceCache


class Scheduler:
    """The scheduler: it forms steps of waiting and running sequences. Used by one thread only."""

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
        self._drafts = StepDrafts(drafting, limits, times)
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
        self._limits = limits
        self._prefill = PrefillBudget(limits, times)
        self._starts = SequenceStarts(
            queue,
            sequence_cache,
            self.active,
            self._arrivals,
            self._prefill,
            fetcher,
            max_running=limits.max_running,
        )
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
        """True if the duration of steps with decodes is bounded."""
        return (self._limits.max_step_s, self._limits.target_itl_s) != (None, None)

    def _expected(self, now: float) -> int | None:
        return self._arrivals.expected(now, lambda flow: self.queue.num_waiting(flow) > 0)

    def schedule(self, now: float, *, max_tokens: int | None = None) -> Scheduled:
        """Decide the next step.

        `max_tokens` lowers the token budget, but not below twice `max_running`, so that prompts get
        at least `max_running` tokens.
        """
        budget = self._limits.max_batch_tokens
        if max_tokens is not None:
            budget = min(budget, max(max_tokens, 2 * self._limits.max_running))
        builder = StepBuilder(budget)
        has_room = self._continue_decodes(builder, now)
        if self.queue or self.loading or len(self.running) > len(builder.rows):
            target_s = self.gap_targets.of_step(row.sequence for row in builder.rows)
            self._add_prompts(builder, now, target_s, has_room=has_room)
            for rest in (*self._cut(builder, target_s), *builder.stop_at_states()):
                refund_row(self.queue, rest)
        return builder.step()

    def _cut(self, builder: StepBuilder, target_s: float | None) -> list[ScheduledRow]:
        keep = None if target_s is None else self._prefill.tokens_within(builder.rows, target_s)
        return [] if keep is None else builder.cut(keep)

    def _add_prompts(
        self, builder: StepBuilder, now: float, target_s: float | None, *, has_room: bool
    ) -> None:
        """Add rows for newcomers, then for other prompts.

        Without `has_room`, only flows that have no running sequence or are within their part of the
        blocks may take blocks.
        """
        decodes, most = StepShape.of(builder.rows), builder.budget
        newcomers = 0
        if not self._prefill.is_others_turn:
            allowed = builder.budget = self._prefill.of_newcomers(decodes, most, target_s)
            has_room = self._starts.admit_first(builder, now, are_newcomers=True) and has_room
            self._continue_newcomers(builder, now)
            most -= allowed - builder.budget
            newcomers = max(allowed - builder.budget, 0)
        waiting, returning = self._waiting(builder), self._expected(now)
        others = self._prefill.of_others(decodes, newcomers, waiting, returning, most, target_s)
        builder.budget = others
        has_room = self._starts.admit_first(builder, now) and has_room
        self._compute_partial(builder, now, has_room=has_room)
        self._starts.board(builder, now, self.loading)
        if has_room:
            self._starts.admit(builder, now)
        self._starts.admit_behind(builder, now)
        self._prefill.decided(newcomers, others - builder.budget, others_wait=any(waiting))

    def _waiting(self, builder: StepBuilder) -> WaitingPrompts:
        scheduled = without_row(builder, self.running)
        return WaitingPrompts(
            len(scheduled), sum(map(remaining_tokens, scheduled)), len(self.queue)
        )

    def _compute(self, builder: StepBuilder, sequences: Iterable[Sequence]) -> None:
        for sequence in without_row(builder, sequences):
            if builder.budget and sequence.batch_slot is not None:
                charge_row(self.queue, builder.add(sequence))

    def _compute_partial(self, builder: StepBuilder, now: float, *, has_room: bool) -> None:
        for prompt in in_turn(without_row(builder, self.running), self.queue.is_overdue):
            shorter = partial(self.queue.shorter, prompt, remaining_tokens(prompt))
            while has_room and self._starts.admit_next(builder, now, shorter):
                pass_over(without_row(builder, self.running), prompt)
            self._compute(builder, [prompt])

    def _continue_decodes(self, builder: StepBuilder, now: float) -> bool:
        """Add rows for sequences with one token to compute, the oldest first.

        Return whether all decodes got their blocks without a preemption.
        """
        preempted, has_room = self.active.num_preemptions, True
        decodes = self._decodes()
        drafts = dict[Sequence, Draft]()
        if self._may_draft():
            drafts = self._drafts.propose(decodes, self.gap_targets.of_step(decodes))
        for sequence in decodes:
            is_running = sequence.lease is not None  # False: an older sequence has preempted it
            if is_running and not sequence.awaits_mask:
                if self._starts.make_room(sequence, builder, now):
                    self._decode(sequence, drafts.get(sequence), builder, now)
                else:
                    has_room = False
        charge_decodes(self.queue, builder.rows)
        return has_room and self.active.num_preemptions == preempted

    def _decode(
        self, sequence: Sequence, draft: Draft | None, builder: StepBuilder, now: float
    ) -> None:
        if draft and self.sequence_cache.grow(sequence, now, drafts=len(draft.token_ids)):
            builder.verify(sequence, draft)
        else:
            builder.add(sequence)

    def prepare_drafts(self, rows: Iterable[ScheduledRow]) -> None:
        """Prepare drafts for running sequences whose tokens the launched rows sample."""
        if self._drafts.may_have(len(self.running)):
            for row in rows:
                if row.samples and row.sequence.batch_slot is not None:
                    self._drafts.prepare(row.sequence)

    @property
    def is_drafting(self) -> bool:
        """True if the next step may have drafts, so that launched steps should be settled."""
        return self._may_draft() and self._drafts.are_likely(self._decodes())

    def _may_draft(self) -> bool:
        """Return whether the next step may have drafts. A step with prompts has none."""
        running = self.running
        if self.queue or not self._drafts.may_have(len(running)):
            return False
        return all(one.num_pending > 1 or is_decoding(one) for one in running)

    def _decodes(self) -> list[Sequence]:
        decodes = [one for one in self.running if is_decoding(one)]
        stages = self._limits.stages
        if stages == 1:
            return decodes
        verifying = sum(one.num_pending > 1 for one in self.running)
        part = -(-(len(decodes) + verifying) // stages)
        return [one for one in decodes if not one.num_pending][:part]

    def _continue_newcomers(self, builder: StepBuilder, now: float) -> None:
        newcomers = self._arrivals.newcomers()
        if newcomers:
            self._starts.board(builder, now, newcomers)
            self._compute(builder, newcomers)
