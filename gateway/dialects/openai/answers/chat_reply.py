"""The rendering of a chat's answer, whole or in chunks: its text, its reasoning, its calls."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from gateway.dialects.explaining import ratoon_reply
from gateway.dialects.finished_choice import FinishedCall, FinishedChoice
from gateway.dialects.lazy_json import LazyList, listed_now
from gateway.dialects.openai.answers.logprobs import chat_logprobs
from gateway.dialects.openai.answers.prompt_logprobs import prompt_logprobs
from gateway.dialects.openai.answers.rendering import ReplyFormat, scored, usage_reply
from gateway.dialects.openai.answers.replies import (
    AssistantMessage,
    CalledCustom,
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    CustomCall,
    CustomDelta,
    FinishReason,
    FunctionCall,
    FunctionDelta,
    MessageDelta,
    ServedTier,
    ToolCallDelta,
    UsageReply,
)
from gateway.generation.choice import ChoiceEnded, Delta, Event
from gateway.prompts.chats.offered_tools import FreeInput, free_input
from gateway.requests.request_usage import Usage
from gateway.turn_formats.pieces import CallArguments, CallStarted, Piece, ReasoningPiece, TextPiece


@dataclass(slots=True, kw_only=True)
class ChatReply(ReplyFormat):
    """A renderer of an answer as a chat completion, whole or in chunks."""

    request_id: str
    service_tier: ServedTier | UnsetType = UNSET
    # number of candidates for each prompt token, in vLLM's form; None: no log-probabilities
    prompt_logprobs: int | None = None
    free: frozenset[str] = frozenset()
    calls: dict[int, int] = field(default_factory=dict)
    texts: dict[int, FreeInput] = field(default_factory=dict)
    prompt: list[int] | UnsetType = UNSET
    told: set[int] = field(default_factory=set)

    def frame(self, event: Event) -> bytes | None:
        """Write the chunks for `event`, or return None if there is nothing to send."""
        if self.prompt_ids(event):
            self.prompt = self.prompt_ids(event)
        if isinstance(event, Delta) and event.pieces is not None:
            return b"".join(map(self._chunk, self._parsed(event))) or None
        rest = () if isinstance(event, Delta) else self._rest_of_text(event.index)
        chunks = [self._chunk(ChatChunkChoice(event.index, delta)) for delta in rest]
        # `super()` fails in a dataclass with slots
        return b"".join([*chunks, ReplyFormat.frame(self, event) or b""]) or None

    def piece(self, event: Event) -> ChatChunkChoice | None:
        """Write the choice of a chunk for `event`, or return None if there is nothing to send."""
        if not isinstance(event, Delta):
            ids = self.token_ids(event)
            logprobs, reason = self._logprobs(event), self._reason(event)
            return ChatChunkChoice(event.index, MessageDelta(), logprobs, reason, ids)
        first = event.index not in self.begun
        ids = self.token_ids(event)
        if not (first or event.text or event.logprobs or ids):
            return None
        self.begun.add(event.index)
        delta = MessageDelta("assistant", event.text) if first else MessageDelta(content=event.text)
        return ChatChunkChoice(event.index, delta, self._logprobs(event), token_ids=ids)

    def reply(
        self, choices: Sequence[ChatChunkChoice], usage: UsageReply | UnsetType | None
    ) -> ChatChunk:
        """Write a chunk of the answer with the `choices`."""
        prompt, self.prompt = self.prompt, UNSET
        return ChatChunk(
            prompt_token_ids=prompt,
            id=self.id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=choices,
            usage=usage,
            service_tier=self.service_tier,
            provider=self.provider,
        )

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> ChatCompletion:
        """Write the whole answer. Each choice is made when it is encoded."""
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=LazyList(len(choices), lambda at: self._choice(choices[at]), at_once=1),
            usage=usage_reply(usage),
            prompt_logprobs=prompt_logprobs(
                self.tokenizer, choices[0].prompt, self.prompt_logprobs
            ),
            prompt_token_ids=self.prompt_ids(choices[0]),
            service_tier=self.service_tier,
            provider=self.provider,
            ratoon=ratoon_reply(usage, self.ignored),
        )

    def _parsed(self, event: Delta) -> Iterator[ChatChunkChoice]:
        """Yield a choice for each piece of `event`.

        Only the first choice has log-probabilities and token ids.
        """
        deltas = [one for piece in event.pieces or () for one in self._deltas(event.index, piece)]
        if event.index not in self.begun:
            self.begun.add(event.index)
            deltas.insert(0, MessageDelta("assistant", ""))
        logprobs, ids = self._logprobs(event), self.token_ids(event)
        if (logprobs is not None or ids) and not deltas:
            deltas = [MessageDelta(content="")]
        for place, delta in enumerate(deltas):
            if place:
                logprobs, ids = None, UNSET
            yield ChatChunkChoice(event.index, delta, logprobs, token_ids=ids)

    def _deltas(self, index: int, piece: Piece) -> Iterator[MessageDelta]:
        if not isinstance(piece, CallArguments):
            yield from self._rest_of_text(index)
        match piece:
            case TextPiece(text):
                yield MessageDelta(content=text)
            case ReasoningPiece(text):
                yield MessageDelta(reasoning_content=text, reasoning=text)
            case CallStarted(name):
                yield MessageDelta(tool_calls=[self._begun(index, name)])
            case CallArguments(text) if index in self.texts:
                yield from self._text(index, self.texts[index].feed(text))
            case CallArguments(text):
                more = ToolCallDelta(self.calls[index], function=FunctionDelta(arguments=text))
                yield MessageDelta(tool_calls=[more])

    def _begun(self, index: int, name: str) -> ToolCallDelta:
        number = self.calls[index] = self.calls.get(index, -1) + 1
        call_id = self._call_id(index, number)
        if name in self.free:
            self.texts[index] = FreeInput()
            return ToolCallDelta(number, call_id, "custom", custom=CustomDelta(name, ""))
        return ToolCallDelta(number, call_id, "function", FunctionDelta(name, ""))

    def _rest_of_text(self, index: int) -> Iterator[MessageDelta]:
        reader = self.texts.pop(index, None)
        if reader is not None:
            yield from self._text(index, reader.end())

    def _text(self, index: int, text: str) -> Iterator[MessageDelta]:
        if text:
            more = ToolCallDelta(self.calls[index], custom=CustomDelta(input=text))
            yield MessageDelta(tool_calls=[more])

    def _choice(self, choice: FinishedChoice) -> ChatChoice:
        calls = [
            self._call(call, self._call_id(choice.index, number))
            for number, call in enumerate(choice.calls)
        ]
        self.calls[choice.index] = len(calls) - 1
        message = AssistantMessage(
            content=choice.text if choice.text or not calls else None,
            reasoning_content=choice.reasoning or UNSET,
            reasoning=choice.reasoning or UNSET,
            tool_calls=calls or UNSET,
        )
        return ChatChoice(
            choice.index,
            message,
            self._logprobs(choice),
            self._reason(choice.end),
            self.token_ids(choice),
        )

    def _call(self, call: FinishedCall, call_id: str) -> FunctionCall | CustomCall:
        if call.name in self.free:
            return CustomCall(call_id, CalledCustom(call.name, free_input(call.arguments)))
        return FunctionCall(call_id, CalledFunction(call.name, call.arguments))

    def _reason(self, end: ChoiceEnded) -> FinishReason:
        has_calls = self.calls.get(end.index, -1) >= 0
        return "tool_calls" if has_calls and end.reason == "stop" else end.reason

    def _call_id(self, index: int, number: int) -> str:
        return f"call_{self.request_id[:20]}{index:02x}{number:02x}"

    def _logprobs(self, choice: Event | FinishedChoice) -> ChatLogprobs | None:
        """Write the log-probabilities of a choice's tokens.

        The token that stopped the choice is among them only if ids are shown.
        """
        token_ids, reported = scored(choice, with_stop=self.shows_ids)
        if reported is None:
            return None
        begins = choice.index not in self.told
        if token_ids:
            self.told.add(choice.index)
        listed = LazyList if isinstance(choice, FinishedChoice) else listed_now
        return chat_logprobs(self.tokenizer, token_ids, reported, begins=begins, listed=listed)
