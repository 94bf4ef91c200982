"""The settling of a step: append tokens to sequences, make events, put blocks into the tree.

`settle` appends the sampled tokens and makes the events. `commit` puts completed blocks into the
tree. The events are sent before the commit, because clients wait for them.

The tokens of a launched step already count as computed, and its samples as pending, so that the
next step can be scheduled. Only this module changes these counts, and decides when a sequence ends:

    a stop token      eos unless ignore_eos, or in stop_token_ids -> Finished("stop")
    constraint over   the last token is sent, then                -> Finished("stop")
    max_tokens        the last token is sent, then                -> Finished("length")
                      0: the token is neither sent nor counted    -> Finished("length")
    cancelled         at any stage                                -> Finished("cancelled")
    logits not finite the sequence's blocks are forgotten         -> Failed(NumericFailure)
    no token allowed  by the constraint                           -> Failed(ConstraintUnsatisfied)
    engine at fault                                               -> Failed(EngineFailure)

If the mask of a row is late, the row is left out of the sampling, and its last token is computed
again. A sequence may end while the next step already computes a row of it. The result of that row
is dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import islice

from msgspec import structs

from engine.drafting.draft import Draft
from engine.errors import ConstraintUnsatisfied, EngineError, NumericFailure
from engine.link.event_messages import FinishReason
from engine.scheduling.counters import EngineCounters
from engine.scheduling.fairness.costs import charge_more
from engine.scheduling.scheduled_rows import Scheduled, ScheduledRow
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence_events import AddressedEvent, SequenceEvents, StoppedBy, join_tokens
from engine.scheduling.step_times import StepTimes
from engine.sentinel.sentinel import NOBODY, Sentinel
from engine.sequences.sequence import Sequence
from engine.step import SCORE, VERIFY, Sampled, samples_each


class Settler:
    """A settler of steps. It also ends sequences. Used by one thread only."""

    def __init__(
        self,
        scheduler: Scheduler,
        counters: EngineCounters,
        times: StepTimes,
        sentinel: Sentinel | None = None,
        *,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self._sentinel = sentinel
        self._scheduler = scheduler
        self._sequence_cache = scheduler.sequence_cache
        self._gap_targets = scheduler.gap_targets
        self._counters = counters
        self._events = SequenceEvents(times)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._uncommitted: list[ScheduledRow] = []

    def begin(self, step: Scheduled) -> None:
        """Count the tokens that a launched step computes and samples."""
        for row, sent in zip(step.rows, step.step.rows, strict=True):
            if sent.state_out:
                end = row.state_end or row.end
                self._sequence_cache.launched(row.sequence, end, sent.state_out)
            sequence = row.sequence
            sequence.num_computed = row.end
            sequence.prompt_end = max(sequence.prompt_end, min(row.end, sequence.prompt_len))
            if row.kind is not SCORE:
                sequence.num_pending += row.num_samples

    def leave_out(self, row: ScheduledRow, now: float) -> None:
        """Undo the sampling of a launched row that was left out.

        A later row computes the last token of `row` again, or all its tokens if the model has
        recurrent layers. If the recurrent state before the row is overwritten, the sequence starts
        over. Call before the next step is scheduled.
        """
        if row.is_over:
            return
        if self._sequence_cache.is_overwritten(row.sequence):
            self._scheduler.active.preempt(row.sequence, now)
        else:
            is_whole = self._sequence_cache.left_out(row.sequence) or samples_each(row.kind)
            row.sequence.num_computed = row.start if is_whole else row.end - 1
            row.sequence.num_pending = 0

    def settle(
        self, step: Scheduled, sampled: Iterable[Sampled], now: float, seconds: float = 0.0
    ) -> list[AddressedEvent]:
        """Apply the results of a computed step, and return the events.

        `sampled` has an entry for each sampled token, in row order. `seconds` is the duration of
        the step. It is divided among the rows by their tokens. The caller must call `commit` before
        the next step is scheduled.
        """
        replies: list[AddressedEvent] = []
        per_token = seconds / max(step.step.num_tokens, 1)
        generated: defaultdict[str, int] = defaultdict(int)
        results = iter(sampled)
        for row in step.rows:
            value = next(results) if row.samples else None
            more = tuple(islice(results, row.num_samples - 1)) if samples_each(row.kind) else ()
            row.sequence.engine_seconds += per_token * row.num_new
            if row.is_over:
                continue
            if value is None:
                self._advance(row, now)
            elif row.kind is SCORE:
                replies += self._score(row, (value, *more), now)
            elif value.is_left_out:
                # With a recurrent state, all tokens of the row are computed again.
                is_whole = row.kind is VERIFY or self._sequence_cache.has_states(row.sequence)
                if row.start < row.end - 1 and not is_whole:
                    self._advance(structs.replace(row, end=row.end - 1), now)
            elif row.kind is VERIFY:
                known = row.sequence.num_tokens
                replies += self._take_several(row, (value, *more), now)
                generated[row.sequence.flow] += row.sequence.num_tokens - known
            elif value.token_id is None:
                replies.append(self._fail_sampling(row.sequence, value, now))
            else:
                self._advance(row, now)
                row.sequence.num_pending -= 1
                # With `max_tokens` 0, a token is sampled too, but neither sent nor counted.
                if row.sequence.sampling.max_tokens:
                    generated[row.sequence.flow] += 1
                replies += self._append(row.sequence, value.token_id, value, now)
        generated.pop(NOBODY, None)
        for flow, tokens in generated.items():
            self._counters.generated(flow, tokens)
        self._gap_targets.settled(step.rows)
        return replies

    def take_fetched(self, sequence: Sequence, end: int, now: float) -> None:
        """Count as computed the tokens that another engine has sent."""
        start, sequence.num_computed = sequence.num_computed, end
        if sequence.admitted is None:
            sequence.fetched_end = end
        self._sequence_cache.commit(sequence, start, end, now, is_written=False)

    def end(self, sequence: Sequence, now: float) -> AddressedEvent:
        """End a sequence whose grammar was found to be complete after its step was settled."""
        return self._finish(sequence, "stop", now)

    def end_fetched(self, sequence: Sequence, now: float) -> AddressedEvent:
        """End a sequence whose request asked only for a fetch (`FetchSource.only`)."""
        return self._finish(sequence, "length", now)

    def commit(self, now: float) -> None:
        """Put into the tree the blocks that the last settled rows have completed."""
        rows, self._uncommitted = self._uncommitted, []
        for row in rows:
            self._sequence_cache.commit(row.sequence, row.start, row.end, now)

    def cancel(self, sequence: Sequence, now: float) -> AddressedEvent:
        """End a sequence whose request was cancelled."""
        return self._finish(sequence, "cancelled", now)

    def fail(self, sequence: Sequence, error: EngineError, now: float) -> AddressedEvent:
        """End a sequence that cannot continue because of `error`."""
        self._scheduler.active.stop(sequence, now)
        self._unwatch(sequence)
        return self._events.failed(sequence, error)

    def _advance(self, row: ScheduledRow, now: float) -> None:
        self._uncommitted.append(row)
        if row.start < row.sequence.prompt_len:
            end = min(row.end, row.sequence.prompt_len)
            self._counters.computed(end - row.start, now)

    def _score(
        self, row: ScheduledRow, values: tuple[Sampled, ...], now: float
    ) -> list[AddressedEvent]:
        if any(value.is_left_out for value in values):
            return []
        for value in values:
            if value.logprobs is None:
                return [self._fail_sampling(row.sequence, value, now)]
        self._advance(row, now)
        row.sequence.scores[row.start :] = [value.logprobs for value in values if value.logprobs]
        return []

    def _take_several(
        self, row: ScheduledRow, values: tuple[Sampled, ...], now: float
    ) -> list[AddressedEvent]:
        """Settle the sampled values of one row in order, until the sequence ends.

        Stop after a value that differs from the draft, because later values were sampled after
        wrong tokens. Also stop at a value whose mask was late. The later tokens of the row are
        computed again.
        """
        sequence, draft = row.sequence, row.draft
        assert draft is not None
        first = row.end - len(values)
        start, end, accepted = row.start, first, 0
        self._count(sequence, draft, drafted=len(draft.token_ids))
        replies: list[AddressedEvent] = []
        for value, token_id in zip(values, (*draft.token_ids, None), strict=True):
            if value.is_left_out:
                break
            if value.token_id is None:
                replies.append(self._fail_sampling(sequence, value, now))
                break
            end += 1
            self._advance(structs.replace(row, start=start, end=end), now)
            if value.token_id == token_id:
                accepted += 1
                self._count(sequence, draft, accepted=1)
            replies += self._append(sequence, value.token_id, value, now)
            if row.is_over or value.token_id != token_id:
                break
            start = end
        if not row.is_over:
            self._continue_after(sequence, end)
        charge_more(self._scheduler.queue, sequence, max(end - first - 1, 0))
        if draft.token_ids:
            self._counters.drafted(draft.source, len(draft.token_ids), accepted)
        return join_tokens(replies)

    def _continue_after(self, sequence: Sequence, end: int) -> None:
        """Let a sequence continue after its verified tokens, or after an earlier recurrent state.

        The KV of the tokens after that state will be written again.
        """
        at = self._sequence_cache.verified(sequence, end)
        sequence.num_computed, sequence.num_pending = at, 0
        if at < end:
            sequence.num_verified = end
            self._uncommitted = [
                row if row.sequence is not sequence else structs.replace(row, end=min(row.end, at))
                for row in self._uncommitted
                if row.sequence is not sequence or row.start < at
            ]

    def _count(self, sequence: Sequence, draft: Draft, drafted: int = 0, accepted: int = 0) -> None:
        if draft.token_ids:
            before = sequence.draft_counts.get(draft.source, (0, 0))
            sequence.draft_counts[draft.source] = before[0] + drafted, before[1] + accepted

    def _append(
        self, sequence: Sequence, token_id: int, result: Sampled, now: float
    ) -> list[AddressedEvent]:
        sequence.append(token_id)
        self._gap_targets.sent(sequence, now)
        if sequence.watch is not None and result.logprobs is not None:
            sequence.watch.logprobs.append(result.logprobs.chosen)
        sequence.head_draft = sequence.num_tokens, result.drafted
        if sequence.marks and sequence.num_output == 1:
            self.commit(now)
            self._sequence_cache.retain(sequence, now)
        if not sequence.sampling.max_tokens:
            sequence.embedding, sequence.logits = result.embedding, result.candidates
            return [self._finish(sequence, "length", now)]
        if self._stops(sequence, token_id):
            stopped_by = self._events.stopped_by(sequence, token_id, result)
            return [self._finish(sequence, "stop", now, stopped_by)]
        replies = [self._events.tokens(sequence, token_id, result, now)]
        if sequence.constraint is not None and sequence.constraint.is_over:
            replies.append(self._finish(sequence, "stop", now))
        elif sequence.num_output >= sequence.sampling.max_tokens:
            replies.append(self._finish(sequence, "length", now))
        return replies

    def _stops(self, sequence: Sequence, token_id: int) -> bool:
        sampling = sequence.sampling
        if token_id in sampling.stop_token_ids:
            return True
        return token_id in self._eos_token_ids and not sampling.ignore_eos

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        stopped_by: StoppedBy | None = None,
    ) -> AddressedEvent:
        self.commit(now)
        self._scheduler.active.stop(sequence, now)
        if self._sentinel is not None:
            self._sentinel.ended(sequence, now)
        return self._events.finished(sequence, reason, stopped_by)

    def _unwatch(self, sequence: Sequence) -> None:
        if self._sentinel is not None:
            self._sentinel.failed(sequence)

    def _fail_sampling(self, sequence: Sequence, value: Sampled, now: float) -> AddressedEvent:
        self.commit(now)  # commit before the lease is released
        if value.is_ruled_out:
            why = None if sequence.constraint is None else sequence.constraint.error
            nothing = ConstraintUnsatisfied("the request's constraint allows no token here")
            return self.fail(sequence, why or nothing, now)
        self._scheduler.active.expel(sequence, now)
        self._unwatch(sequence)
        error = NumericFailure("the model produced numbers that are not finite")
        return self._events.failed(sequence, error)
