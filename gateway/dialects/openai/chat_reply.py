"""An answer to a chat, whole or in chunks: its text, its reasoning, its calls.

Knows: OpenAI's messages and their pieces. Does not know: how a text is read for calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from gateway.dialects.explaining import ratoon_reply
from gateway.dialects.finished_choice import FinishedChoice
from gateway.dialects.openai.logprobs import chat_logprobs
from gateway.dialects.openai.prompt_logprobs import prompt_logprobs
from gateway.dialects.openai.rendering import ReplyFormat, usage_reply
from gateway.dialects.openai.replies import (
    AssistantMessage,
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    FinishReason,
    FunctionCall,
    FunctionDelta,
    MessageDelta,
    ServedTier,
    ToolCallDelta,
    UsageReply,
)
from gateway.generation.choice import ChoiceEnded, Delta, Event
from gateway.turn_formats.pieces import CallArguments, CallStarted, Piece, ReasoningPiece, TextPiece
from gateway.usage.request_metrics import Usage


@dataclass(slots=True, kw_only=True)
class ChatReply(ReplyFormat):
    """Renders an answer as a chat completion, whole or in chunks."""

    request_id: str
    service_tier: ServedTier | UnsetType = UNSET
    prompt_logprobs: int | None = None  # in vLLM's form
    calls: dict[int, int] = field(default_factory=dict)  # begun so far, by choice
    told: set[int] = field(default_factory=set)  # choices of which tokens were told

    def frame(self, event: Event) -> bytes | None:
        """The chunks for `event` as bytes; None when there is nothing to send."""
        if isinstance(event, Delta) and event.pieces is not None:
            return b"".join(map(self._chunk, self._parsed(event))) or None
        return ReplyFormat.frame(self, event)  # `super()` does not know a class with slots

    def piece(self, event: Event) -> ChatChunkChoice | None:
        """What `event` adds to its message."""
        if not isinstance(event, Delta):
            return ChatChunkChoice(event.index, MessageDelta(), None, self._reason(event))
        first = event.index not in self.begun
        if not (first or event.text or event.logprobs):
            return None
        self.begun.add(event.index)
        delta = MessageDelta("assistant", event.text) if first else MessageDelta(content=event.text)
        return ChatChunkChoice(event.index, delta, self._logprobs(event))

    def reply(
        self, choices: list[ChatChunkChoice], usage: UsageReply | UnsetType | None
    ) -> ChatChunk:
        """A chunk of the answer."""
        return ChatChunk(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=usage,
            service_tier=self.service_tier,
        )

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> ChatCompletion:
        """The whole answer."""
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[self._choice(choice) for choice in choices],
            usage=usage_reply(usage),
            prompt_logprobs=prompt_logprobs(
                self.tokenizer, choices[0].prompt, self.prompt_logprobs
            ),
            service_tier=self.service_tier,
            ratoon=ratoon_reply(usage),
        )

    def _parsed(self, event: Delta) -> Iterator[ChatChunkChoice]:
        """A chunk for each piece of the turn; log-probabilities are in the first."""
        deltas = [self._delta(event.index, piece) for piece in event.pieces or ()]
        if event.index not in self.begun:
            self.begun.add(event.index)
            deltas.insert(0, MessageDelta("assistant", ""))
        logprobs = self._logprobs(event)
        if logprobs is not None and not deltas:
            deltas = [MessageDelta(content="")]
        for place, delta in enumerate(deltas):
            yield ChatChunkChoice(event.index, delta, None if place else logprobs)

    def _delta(self, index: int, piece: Piece) -> MessageDelta:
        match piece:
            case TextPiece(text):
                return MessageDelta(content=text)
            case ReasoningPiece(text):
                return MessageDelta(reasoning_content=text, reasoning=text)
            case CallStarted(name):
                number = self.calls[index] = self.calls.get(index, -1) + 1
                begun = ToolCallDelta(
                    number, self._call_id(index, number), "function", FunctionDelta(name, "")
                )
                return MessageDelta(tool_calls=[begun])
            case CallArguments(text):
                more = ToolCallDelta(self.calls[index], function=FunctionDelta(arguments=text))
                return MessageDelta(tool_calls=[more])

    def _choice(self, choice: FinishedChoice) -> ChatChoice:
        calls = [
            FunctionCall(
                self._call_id(choice.index, number), CalledFunction(call.name, call.arguments)
            )
            for number, call in enumerate(choice.calls)
        ]
        self.calls[choice.index] = len(calls) - 1
        message = AssistantMessage(
            content=choice.text if choice.text or not calls else None,
            reasoning_content=choice.reasoning or UNSET,
            reasoning=choice.reasoning or UNSET,
            tool_calls=calls or UNSET,
        )
        return ChatChoice(choice.index, message, self._logprobs(choice), self._reason(choice.end))

    def _reason(self, end: ChoiceEnded) -> FinishReason:
        has_calls = self.calls.get(end.index, -1) >= 0
        return "tool_calls" if has_calls and end.reason == "stop" else end.reason

    def _call_id(self, index: int, number: int) -> str:
        return f"call_{self.request_id[:20]}{index:02x}{number:02x}"

    def _logprobs(self, choice: Delta | FinishedChoice) -> ChatLogprobs | None:
        if choice.logprobs is None:
            return None
        begins = choice.index not in self.told
        if choice.token_ids:
            self.told.add(choice.index)
        return chat_logprobs(self.tokenizer, choice.token_ids, choice.logprobs, begins=begins)
