"""Apply what a step produced: tokens to sequences, events out, computed blocks to the tree.

    settle    tokens are appended, events made
    commit    the blocks that they completed go to the tree: after the events have been sent, since
              a client waits for these and nobody can ask for a block before the next step

Steps begin here too: from its launch on a step's tokens count as computed and what it samples
as pending, so that the next one can be decided. This is the one place where these counts
advance, and where a sequence's end is decided:

    a stop token      eos unless ignore_eos, or one of stop_token_ids   -> Finished("stop")
    max_tokens        the last token is sent, then                     -> Finished("length")
    cancelled         at any stage                                     -> Finished("cancelled")
    not finite        its blocks are forgotten                         -> Failed(NumericFailure)
    engine at fault                                                    -> Failed(EngineFailure)

A sequence may end while the next step is on its way with a row of it. Nothing of that row is
applied (`Row.is_over`).

Knows: rows, tokens, reasons. Does not know: how tokens were chosen (min_tokens is the
sampler's business), or sockets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from engine.errors import EngineError, NumericFailure
from engine.holdings import Holdings
from engine.messages import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Timing,
    Tokens,
    WrittenAndRead,
)
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.stats import Meter
from engine.stats_messages import TierTokens
from engine.step import Row, Sampled, Step
from prefix_cache.recompute import PrefillCurve


class Reply(NamedTuple):
    """An event and the connection it goes to."""

    client: bytes
    event: Event

    @property
    def is_last(self) -> bool:
        """Whether the request ends with it."""
        return not isinstance(self.event, Tokens)


class Settler:
    """Ends steps and sequences. One owner thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        holdings: Holdings,
        meter: Meter,
        prefill: PrefillCurve,
        *,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self._scheduler = scheduler
        self._holdings = holdings
        self._meter = meter
        self._prefill = prefill
        self._eos_token_ids = frozenset(eos_token_ids)
        self._uncommitted: list[Row] = []  # settled; their sequences hold their leases

    def begin(self, step: Step) -> None:
        """Advance the counts by what a launched step will compute and sample."""
        for row in step.rows:
            row.sequence.num_computed = row.end
            row.sequence.num_pending += row.samples

    def settle(
        self, step: Step, sampled: Iterable[Sampled], now: float, seconds: float = 0.0
    ) -> list[Reply]:
        """Apply a computed step; `sampled` has one entry per row that samples, in row order.

        `seconds` is what the step took; every row has its part of it, by tokens. To be followed
        by `commit`, before a next step is decided.
        """
        replies: list[Reply] = []
        per_token = seconds / max(step.num_tokens, 1)
        generated: dict[str, int] = {}
        results = iter(sampled)
        for row in step.rows:
            result = next(results) if row.samples else None
            row.sequence.engine_seconds += per_token * row.num_new
            if row.is_over:
                continue
            if result is None:
                self._advance(row, now)
            elif result.token_id is None:
                replies.append(self._fail_numeric(row.sequence, now))
            else:
                self._advance(row, now)
                row.sequence.num_pending -= 1
                generated[row.sequence.flow] = generated.get(row.sequence.flow, 0) + 1
                replies += self._append(row.sequence, result.token_id, result, now)
        for flow, tokens in generated.items():
            self._meter.generated(flow, tokens)
        return replies

    def commit(self, now: float) -> None:
        """Put the blocks that the rows settled last have completed into the tree."""
        rows, self._uncommitted = self._uncommitted, []
        for row in rows:
            self._holdings.commit(row.sequence, row.start, row.end, now)

    def cancel(self, sequence: Sequence, now: float) -> Reply:
        """End a sequence whose client left, at whatever stage it is."""
        self.commit(now)  # it may be found gone by what it was just told
        self._scheduler.active.stop(sequence, now)
        return self._finished(sequence, "cancelled")

    def fail(self, sequence: Sequence, error: EngineError, now: float) -> Reply:
        """End a sequence that the engine cannot go on with."""
        self._scheduler.active.stop(sequence, now)
        return _failed(sequence, error)

    def _advance(self, row: Row, now: float) -> None:
        self._uncommitted.append(row)
        if row.start < row.sequence.prompt_len:
            self._meter.computed(min(row.end, row.sequence.prompt_len) - row.start, now)

    def _append(
        self, sequence: Sequence, token_id: int, result: Sampled, now: float
    ) -> list[Reply]:
        sequence.append(token_id)
        if self._stops(sequence, token_id):
            return [self._finish(sequence, "stop", now, stop_token_id=token_id)]
        replies = [self._tokens(sequence, token_id, result, now)]
        if sequence.num_output >= sequence.sampling.max_tokens:
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
        *,
        stop_token_id: int | None = None,
    ) -> Reply:
        self.commit(now)  # while it has its lease
        self._scheduler.active.stop(sequence, now)
        return self._finished(sequence, reason, stop_token_id)

    def _fail_numeric(self, sequence: Sequence, now: float) -> Reply:
        self._scheduler.active.expel(sequence, now)
        error = NumericFailure("the model produced numbers that are not finite")
        return _failed(sequence, error)

    def _tokens(self, sequence: Sequence, token_id: int, result: Sampled, now: float) -> Reply:
        first = not sequence.has_sent_tokens
        sequence.has_sent_tokens = True
        timing = _timing(sequence, now) if first else None
        return Reply(
            sequence.client,
            Tokens(
                request_id=sequence.request_id,
                token_ids=(token_id,),
                logprobs=None if result.logprobs is None else (result.logprobs,),
                cached_tokens=sequence.cached_tokens if first else None,
                tiers=_tiers(sequence) if first else None,
                queue_seconds=None if timing is None else timing.queue,
                timing=timing,
                saved_seconds=self._saved(sequence) if first else None,
            ),
        )

    def _finished(
        self, sequence: Sequence, reason: FinishReason, stop_token_id: int | None = None
    ) -> Reply:
        """`completion_tokens` counts every sampled token, the one that stopped it included."""
        return Reply(
            sequence.client,
            Finished(
                request_id=sequence.request_id,
                reason=reason,
                stop_token_id=stop_token_id,
                prompt_tokens=sequence.prompt_len,
                cached_tokens=sequence.cached_tokens,
                completion_tokens=sequence.num_output,
                tiers=_tiers(sequence),
                engine_seconds=sequence.engine_seconds,
                saved_seconds=self._saved(sequence),
                cache=_written_and_read(sequence),
            ),
        )

    def _saved(self, sequence: Sequence) -> float | None:
        """Seconds that its cached tokens would have taken to compute; None: not measured yet."""
        if not self._prefill.is_measured:
            return None
        return self._prefill.seconds(0, sequence.cached_tokens)


def failed(
    client: bytes,
    request_id: str,
    error: EngineError,
    cache: WrittenAndRead | None = None,
) -> Reply:
    """The reply that ends a request with an error."""
    return Reply(
        client,
        Failed(
            request_id=request_id,
            code=error.code,
            message=error.message,
            retry_after_s=error.retry_after_s,
            cache=cache or WrittenAndRead(),
        ),
    )


def _failed(sequence: Sequence, error: EngineError) -> Reply:
    return failed(sequence.client, sequence.request_id, error, _written_and_read(sequence))


def _written_and_read(sequence: Sequence) -> WrittenAndRead:
    """Of a sequence that has given its lease back."""
    return WrittenAndRead(sequence.written_tokens, sequence.first_reads)


def _timing(sequence: Sequence, now: float) -> Timing:
    """Where the time before the first token went; a preemption on the way counts as prefill."""
    admitted = sequence.arrived if sequence.admitted is None else sequence.admitted
    match, load = sequence.match_seconds, sequence.load_seconds
    queue = max(0.0, admitted - sequence.arrived - load)  # `admitted` comes after the loads
    prefill = max(0.0, now - admitted - match)
    return Timing(queue, match, load, prefill)


def _tiers(sequence: Sequence) -> TierTokens:
    found = sequence.found
    return TierTokens(found.device, found.host, found.disk)
