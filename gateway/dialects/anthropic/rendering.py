"""The rendering of one answer in Anthropic's shape, whole or as stream events.

A stream begins with the message without content. Each block follows, from its start to its stop,
and then the stop reason and the usage. Only one block is open at a time. The first event reports
the cached prompt tokens, so it waits for the first token of the answer. Until then, pings keep the
stream alive.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from gateway.dialects.anthropic.diagnostics import CacheQuestions
from gateway.dialects.anthropic.errors import MessagesError
from gateway.dialects.anthropic.limit_headers import limit_headers
from gateway.dialects.anthropic.replies import (
    UNSIGNED,
    CacheCreation,
    Content,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    ContentDelta,
    InputJsonDelta,
    MessageDeltaEvent,
    MessageReply,
    MessageStart,
    MessageStop,
    MessageUsage,
    SignatureDelta,
    StopDelta,
    StopReason,
    StreamEvent,
    TextContent,
    TextDelta,
    ThinkingContent,
    ThinkingDelta,
    ThinkingDetails,
    ToolUseContent,
)
from gateway.dialects.cache_control import AN_HOUR, FIVE_MINUTES
from gateway.dialects.explaining import DraftUsage
from gateway.dialects.finished_choice import FinishedCall, FinishedChoice, JoinedPieces, pieces_of
from gateway.generation.choice import ChoiceEnded, Event
from gateway.prompts.chats.offered_tools import PassedOver
from gateway.requests.request_usage import Usage
from gateway.tenant_limits import RateStatus
from gateway.turn_formats.pieces import CallArguments, CallStarted, Piece, ReasoningPiece, TextPiece

PING = b'event: ping\ndata: {"type":"ping"}\n\n'


@dataclass(slots=True)
class MessageRendering:
    """A renderer of the answer to one Messages request."""

    last: ClassVar[bytes] = b""

    request_id: str
    model: str
    max_tokens: int  # the requested maximum; the context may have less room
    shows_thinking: bool = True
    asked: CacheQuestions = field(default_factory=CacheQuestions)
    ignored: tuple[PassedOver, ...] = ()  # parts of the request that have no effect
    heard: JoinedPieces | None = None  # joins a stream's pieces if a thread stores the answer
    is_open: type[Piece] | None = None
    blocks: int = 0
    calls: int = 0
    end: ChoiceEnded | None = None

    @property
    def message_id(self) -> str:
        """The answer's id."""
        return f"msg_{self.request_id}"

    def headers(self, standing: RateStatus) -> Mapping[str, str]:
        return limit_headers(standing)

    def begin(self, usage: Usage) -> bytes:
        """Write `message_start` and a ping."""
        message = self._message([], None, usage)
        return event(MessageStart(message)) + PING

    def frame(self, told: Event) -> bytes | None:
        """Write the stream events for the answer's event `told`."""
        if isinstance(told, ChoiceEnded):
            self.end = told
            return self._closed() or None
        pieces = pieces_of(told)
        if self.heard is not None:
            for piece in pieces:
                self.heard.add(piece)
        return b"".join(map(self._piece, pieces)) or None

    def usage_frame(self, usage: Usage) -> bytes:
        """Write `message_delta` with the stop reason and the usage, then `message_stop`."""
        assert self.end is not None
        stop = StopDelta(self._stop_reason(self.end), _stop_sequence(self.end))
        return event(MessageDeltaEvent(stop, self._usage(usage))) + event(MessageStop())

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> MessageReply:
        [choice] = choices
        content = [self._content(piece) for piece in choice.pieces]
        return self._message(content, choice.end, usage)

    def _message(
        self, content: list[Content], end: ChoiceEnded | None, usage: Usage
    ) -> MessageReply:
        return MessageReply(
            id=self.message_id,
            model=self.model,
            content=content,
            stop_reason=None if end is None else self._stop_reason(end),
            stop_sequence=None if end is None else _stop_sequence(end),
            usage=self._usage(usage),
            diagnostics=self.asked.diagnostics(usage),
            ratoon=self.asked.ratoon(usage, self.ignored),
        )

    def _content(self, piece: TextPiece | ReasoningPiece | FinishedCall) -> Content:
        match piece:
            case TextPiece(text):
                return TextContent(text)
            case ReasoningPiece(text):
                return ThinkingContent(text if self.shows_thinking else "", UNSIGNED)
            case FinishedCall():
                return ToolUseContent(self._call_id(), piece.name, piece.object())

    def _piece(self, piece: Piece) -> bytes:
        match piece:
            case TextPiece(text):
                return self._within(TextPiece, TextContent("")) + self._delta(TextDelta(text))
            case ReasoningPiece(text):
                opened = self._within(ReasoningPiece, ThinkingContent(""))
                return opened + (self._delta(ThinkingDelta(text)) if self.shows_thinking else b"")
            case CallStarted(name):
                closed = self._closed()
                block = ToolUseContent(self._call_id(), name, {})
                return closed + self._within(CallStarted, block)
            case CallArguments(text):
                return self._delta(InputJsonDelta(text))

    def _within(self, kind: type[Piece], empty: Content) -> bytes:
        if self.is_open is kind:
            return b""
        closed = self._closed()
        self.is_open, self.blocks = kind, self.blocks + 1
        return closed + event(ContentBlockStart(self.blocks - 1, empty))

    def _delta(self, delta: ContentDelta) -> bytes:
        return event(ContentBlockDelta(self.blocks - 1, delta))

    def _closed(self) -> bytes:
        if self.is_open is None:
            return b""
        signed = self._delta(SignatureDelta(UNSIGNED)) if self.is_open is ReasoningPiece else b""
        self.is_open = None
        return signed + event(ContentBlockStop(self.blocks - 1))

    def _stop_reason(self, end: ChoiceEnded) -> StopReason:
        if end.reason == "length":
            is_whole = end.completion_tokens >= self.max_tokens
            return "max_tokens" if is_whole else "model_context_window_exceeded"
        if isinstance(end.stopped_by, str):
            return "stop_sequence"
        return "tool_use" if self.calls else "end_turn"

    def _usage(self, usage: Usage) -> MessageUsage:
        """Write the usage. `input_tokens` excludes tokens read from or written to the cache."""
        written = usage.written_by_seconds()
        for_less, for_an_hour = written.get(FIVE_MINUTES, 0), written.get(AN_HOUR, 0)
        created = for_an_hour + for_less
        return MessageUsage(
            input_tokens=usage.prompt_tokens - usage.cached_tokens - created,
            cache_creation_input_tokens=created,
            cache_read_input_tokens=usage.cached_tokens,
            cache_creation=CacheCreation(
                ephemeral_5m_input_tokens=for_less, ephemeral_1h_input_tokens=for_an_hour
            ),
            output_tokens=usage.completion_tokens,
            output_tokens_details=ThinkingDetails(usage.reasoning_tokens, DraftUsage.of(usage)),
        )

    def _call_id(self) -> str:
        self.calls += 1
        return call_id(self.request_id, self.calls - 1)


def call_id(request_id: str, place: int) -> str:
    """Make the id of the call at index `place` among an answer's calls."""
    return f"toolu_{request_id[:20]}{place:02x}"


def event(value: StreamEvent | MessagesError) -> bytes:
    """Write one server-sent event, named by its `type`."""
    name = str(type(value).__struct_config__.tag)
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(value))


def _stop_sequence(end: ChoiceEnded) -> str | None:
    return end.stopped_by if isinstance(end.stopped_by, str) else None
