"""The events that a sequence's client gets: tokens, end, failure.

Elsewhere: the appending of tokens, and the end of a sequence (`settle`).
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import structs

from engine.errors import EngineError
from engine.link.event_messages import (
    Event,
    Failed,
    Finished,
    FinishReason,
    PromptLogprobs,
    Reused,
    Timing,
    TokenLogprobs,
    Tokens,
    WrittenAndRead,
)
from engine.scheduling.step_times import StepTimes
from engine.sequences.sequence import Sequence
from engine.step import Sampled


class AddressedEvent(NamedTuple):
    """An event, and the client connection to which the event is sent."""

    client: bytes
    event: Event

    @property
    def is_last(self) -> bool:
        """True if the event ends its request."""
        return not isinstance(self.event, Tokens)


class StoppedBy(NamedTuple):
    """The token that stopped a sequence, with log probabilities if the client requested them."""

    token_id: int
    logprobs: TokenLogprobs | None


class SequenceEvents:
    """A factory of sequences' events. `times` predicts the seconds that cached tokens save."""

    def __init__(self, times: StepTimes) -> None:
        self._times = times

    def tokens(
        self, sequence: Sequence, token_id: int, result: Sampled, now: float
    ) -> AddressedEvent:
        """Make the event of one sampled token. A sequence's first event has its timing too."""
        first = not sequence.has_sent_tokens
        sequence.has_sent_tokens = True
        tokens = Tokens(
            request_id=sequence.request_id,
            token_ids=(token_id,),
            logprobs=_told(sequence, result),
            reused=self._reused(sequence) if first else None,
            timing=_timing(sequence, now) if first else None,
            prompt_logprobs=_scores(sequence) if first else None,
        )
        return AddressedEvent(sequence.client, tokens)

    def stopped_by(self, sequence: Sequence, token_id: int, result: Sampled) -> StoppedBy:
        """Describe the token that stops a sequence. It is not part of the answer."""
        told = _told(sequence, result)
        return StoppedBy(token_id, None if told is None else told[0])

    def finished(
        self, sequence: Sequence, reason: FinishReason, stopped_by: StoppedBy | None = None
    ) -> AddressedEvent:
        """Make the event of a sequence's end.

        The token in `stopped_by` counts in `completion_tokens`. If `max_tokens` is 0, the token
        that is sampled after the prompt does not count.
        """
        finished = Finished(
            request_id=sequence.request_id,
            reason=reason,
            stop_token_id=None if stopped_by is None else stopped_by.token_id,
            stop_logprobs=None if stopped_by is None else stopped_by.logprobs,
            prompt_tokens=sequence.num_before + sequence.prompt_len,
            reused=self._reused(sequence),
            computed_tokens=_computed(sequence),
            completion_tokens=min(sequence.num_output, sequence.sampling.max_tokens),
            engine_seconds=_seconds(sequence),
            cache=_written_and_read(sequence),
            prompt_logprobs=None if sequence.has_sent_tokens else _scores(sequence),
            drafts=sequence.draft_counts,
            embedding=sequence.embedding,
            candidates=sequence.logits,
        )
        return AddressedEvent(sequence.client, finished)

    def failed(self, sequence: Sequence, error: EngineError) -> AddressedEvent:
        """Make the event of a failure, with the counters of the work that was done before."""
        client, event = failed(sequence.client, sequence.request_id, error)
        counted = structs.replace(
            event,
            reused=self._reused(sequence),
            computed_tokens=_computed(sequence),
            completion_tokens=sequence.num_output,
            cache=_written_and_read(sequence),
            drafts=sequence.draft_counts,
        )
        return AddressedEvent(client, counted)

    def _reused(self, sequence: Sequence) -> Reused:
        found, written = sequence.found_with_modules, sequence.written
        fetched = sequence.fetched
        saved = None
        if self._times.is_measured:
            saved = self._times.prefill(0, found.total + fetched)
        matched, state_tier = sequence.matched, sequence.state_tier if found.total else None
        return Reused(found, saved, written, fetched, matched, state_tier)


def join_tokens(replies: list[AddressedEvent]) -> list[AddressedEvent]:
    """Join the events of tokens that one sequence got in one step."""
    events = [one.event for one in replies if isinstance(one.event, Tokens)]
    if len(events) < 2:
        return replies
    joined = structs.replace(
        events[0],
        token_ids=tuple([token_id for event in events for token_id in event.token_ids]),
        logprobs=tuple([one for event in events for one in event.logprobs or ()]) or None,
    )
    return [AddressedEvent(replies[0].client, joined), *replies[len(events) :]]


def failed(client: bytes, request_id: str, error: EngineError) -> AddressedEvent:
    """Make the event of a request that fails before any computation."""
    event = Failed(
        request_id=request_id,
        code=error.code,
        message=error.message,
        retry_after_s=error.retry_after_s,
    )
    return AddressedEvent(client, event)


def _told(sequence: Sequence, result: Sampled) -> tuple[TokenLogprobs] | None:
    if result.logprobs is None or (sequence.watch is not None and not sequence.watch.is_told):
        return None
    return (result.logprobs,)


def _scores(sequence: Sequence) -> PromptLogprobs:
    return None if sequence.sampling.prompt_logprobs is None else tuple(sequence.scores)


def _written_and_read(sequence: Sequence) -> WrittenAndRead:
    return WrittenAndRead(sequence.written_tokens, sequence.first_reads)


def _computed(sequence: Sequence) -> int:
    modules = sequence.modules
    return sequence.prompt_computed + (0 if modules is None else modules.charged)


def _seconds(sequence: Sequence) -> float:
    modules = sequence.modules
    return sequence.engine_seconds + (0.0 if modules is None else modules.seconds)


def _timing(sequence: Sequence, now: float) -> Timing:
    """Return the phases of the time before the first token. Preemption counts as prefill time."""
    admitted = sequence.arrived if sequence.admitted is None else sequence.admitted
    match, load, fetch = sequence.match_seconds, sequence.load_seconds, sequence.fetch_seconds
    # `admitted` is the time after the sequence's load and fetch.
    queue = max(0.0, admitted - sequence.arrived - load - fetch)
    prefill = max(0.0, now - admitted - match)
    return Timing(queue, match, load, prefill, fetch, now)
