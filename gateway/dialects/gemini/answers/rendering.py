"""The rendering of one answer in Gemini's shape, whole or as stream events.

Each event of a stream has the form of an answer, with only the new parts and the prompt's token
counts, without which some clients drop its text. A call is sent once it is complete. Before the
first token of a long prompt, events with an empty text keep the connection alive. Comments in the
event stream are no alternative, since clients read them as data.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType, structs

from engine.link.event_messages import TokenLogprobs
from gateway.dialects.explaining import DraftUsage, RatoonReply, ratoon_reply
from gateway.dialects.finished_choice import FinishedCall, FinishedChoice, pieces_of
from gateway.dialects.gemini.answers.logprobs import average, logprobs_result
from gateway.dialects.gemini.answers.replies import (
    AnswerCandidate,
    AnswerContent,
    AnswerPart,
    FinishReason,
    GeminiUsage,
    GenerateContentResponse,
    ModalityTokenCount,
    SaidFunctionCall,
)
from gateway.dialects.lazy_json import LazyList, listed_now
from gateway.generation.choice import ChoiceEnded, Event
from gateway.prompts.chats.offered_tools import PassedOver
from gateway.prompts.tokens.tokenizer import Tokenizer
from gateway.requests.request_usage import Usage
from gateway.tenant_limits import RateStatus
from gateway.turn_formats.pieces import CallArguments, CallStarted, Piece, ReasoningPiece, TextPiece

_EMPTY = AnswerPart(text="")
# Keeps a connection alive. Clients read this event as the beginning of an answer.
PAUSE = b'data: {"candidates":[{"content":{"parts":[{"text":""}],"role":"model"},"index":0}]}\n\n'


@dataclass(slots=True)
class _OpenCall:
    name: str
    arguments: list[str] = field(default_factory=list)

    def finished(self) -> FinishedCall:
        return FinishedCall(self.name, "".join(self.arguments))


@dataclass(slots=True)
class GeminiRendering:
    """A renderer of the answer to one request."""

    last: ClassVar[bytes] = b""

    request_id: str
    model: str
    tokenizer: Tokenizer
    shows_thoughts: bool = False
    ignored: tuple[PassedOver, ...] = ()
    explains: bool = False
    calls: int = 0
    begun: GeminiUsage | UnsetType = UNSET
    is_open: dict[int, _OpenCall] = field(default_factory=dict)
    ends: dict[int, ChoiceEnded] = field(default_factory=dict)

    def headers(self, standing: RateStatus) -> Mapping[str, str]:
        """Return no headers, because Google's API has none for rate limits."""
        del standing
        return {}

    def begin(self, usage: Usage) -> None:
        """Keep the prompt's counts, and write nothing."""
        self.begun = _of_prompt(usage)

    def frame(self, told: Event) -> bytes | None:
        """Write the stream event for the answer's event `told`."""
        if isinstance(told, ChoiceEnded):
            self.ends[told.index] = told
            parts = [*self._closed(told.index)]
        else:
            parts = [part for piece in pieces_of(told) for part in self._piece(told.index, piece)]
            if told.logprobs:
                return self._scored(told.index, parts, told.token_ids, told.logprobs)
        return event(self._reply([self._candidate(told.index, parts)])) if parts else None

    def _scored(
        self,
        index: int,
        parts: list[AnswerPart],
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs],
    ) -> bytes:
        """Write an event with log-probabilities. Its text is empty while the text is held back."""
        result = logprobs_result(self.tokenizer, token_ids, logprobs, listed_now)
        candidate = self._candidate(index, parts or [_EMPTY])
        return event(self._reply([structs.replace(candidate, logprobs_result=result)]))

    def usage_frame(self, usage: Usage) -> bytes:
        """Write the last event, with the finish reasons of all candidates and the usage."""
        ended = [self._candidate(index, [_EMPTY], end) for index, end in sorted(self.ends.items())]
        return event(self._reply(ended, usage))

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> GenerateContentResponse:
        candidates = []
        for choice in choices:
            parts = [part for piece in choice.pieces for part in self._part(piece)]
            made = self._candidate(choice.index, parts or [_EMPTY], choice.end)
            if choice.logprobs is not None:
                made = structs.replace(
                    made,
                    avg_logprobs=average(choice.logprobs),
                    logprobs_result=logprobs_result(
                        self.tokenizer, choice.token_ids, choice.logprobs, LazyList
                    ),
                )
            candidates.append(made)
        return self._reply(candidates, usage)

    def _candidate(
        self, index: int, parts: list[AnswerPart], end: ChoiceEnded | None = None
    ) -> AnswerCandidate:
        reason: FinishReason | UnsetType = UNSET
        if end is not None:
            reason = "MAX_TOKENS" if end.reason == "length" else "STOP"
        return AnswerCandidate(
            content=AnswerContent(parts=parts), finish_reason=reason, index=index
        )

    def _reply(
        self, candidates: list[AnswerCandidate], usage: Usage | None = None
    ) -> GenerateContentResponse:
        return GenerateContentResponse(
            candidates=candidates,
            usage_metadata=self.begun if usage is None else usage_of(usage),
            model_version=self.model,
            response_id=self.request_id,
            ratoon=UNSET if usage is None else self._ratoon(usage),
        )

    def _ratoon(self, usage: Usage) -> RatoonReply | UnsetType:
        return ratoon_reply(usage if self.explains else None, self.ignored)

    def _piece(self, index: int, piece: Piece) -> Iterator[AnswerPart]:
        match piece:
            case CallStarted(name):
                yield from self._closed(index)
                self.is_open[index] = _OpenCall(name)
            case CallArguments(text):
                self.is_open[index].arguments.append(text)
            case TextPiece() | ReasoningPiece():
                yield from self._closed(index)
                yield from self._part(piece)

    def _closed(self, index: int) -> Iterator[AnswerPart]:
        call = self.is_open.pop(index, None)
        if call is not None:
            yield from self._part(call.finished())

    def _part(self, piece: TextPiece | ReasoningPiece | FinishedCall) -> Iterator[AnswerPart]:
        match piece:
            case TextPiece(text):
                yield AnswerPart(text=text)
            case ReasoningPiece(text) if self.shows_thoughts:
                yield AnswerPart(text=text, thought=True)
            case FinishedCall():
                called = SaidFunctionCall(id=self._call_id(), name=piece.name, args=piece.object())
                yield AnswerPart(function_call=called)

    def _call_id(self) -> str:
        self.calls += 1
        return f"call_{self.request_id[:20]}{self.calls - 1:02x}"


def event(value: msgspec.Struct) -> bytes:
    """Write one server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _of_prompt(usage: Usage) -> GeminiUsage:
    return GeminiUsage(
        prompt_token_count=usage.prompt_tokens,
        cached_content_token_count=usage.cached_tokens,
        total_token_count=usage.prompt_tokens,
        prompt_tokens_details=[ModalityTokenCount(token_count=usage.prompt_tokens)],
    )


def usage_of(usage: Usage) -> GeminiUsage:
    """Write usage in Gemini's shape."""
    return msgspec.structs.replace(
        _of_prompt(usage),
        candidates_token_count=usage.completion_tokens - usage.reasoning_tokens,
        thoughts_token_count=usage.reasoning_tokens or UNSET,
        total_token_count=usage.prompt_tokens + usage.completion_tokens,
        ratoon=DraftUsage.of(usage),
    )
