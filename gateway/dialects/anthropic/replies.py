"""Anthropic's answers as Structs: whole messages and the events of a stream."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from gateway.dialects.explaining import DraftUsage, RatoonReply

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class CacheCreation(Struct, frozen=True, kw_only=True):
    """Numbers of tokens written to the cache for breakpoints, by the breakpoints' lifetime."""

    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class ThinkingDetails(Struct, frozen=True):
    """The number of thinking tokens."""

    thinking_tokens: int
    ratoon: DraftUsage | UnsetType = UNSET


class ServerToolUse(Struct, frozen=True, kw_only=True):
    """The number of server tool calls, which is always 0 here."""

    web_search_requests: int = 0
    web_fetch_requests: int = 0


class MessageUsage(Struct, frozen=True, kw_only=True):
    """Token counts of one request. The input counts add up to the prompt's tokens."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    cache_creation: CacheCreation
    output_tokens: int
    output_tokens_details: ThinkingDetails
    server_tool_use: ServerToolUse = ServerToolUse()
    service_tier: Literal["standard"] = "standard"
    speed: Literal["standard"] = "standard"
    inference_geo: None = None  # the server does not know its region


class TextContent(Struct, frozen=True, tag_field="type", tag="text"):
    """A block of text."""

    text: str


# Clients send a block with an empty signature back as text, or not at all.
UNSIGNED = "unsigned"


class ThinkingContent(Struct, frozen=True, tag_field="type", tag="thinking"):
    """A block of the model's thinking. The text may be hidden. The signature proves nothing."""

    thinking: str
    signature: str = ""


class ToolUseContent(Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A block with a tool call."""

    id: str
    name: str
    input: dict[str, Any]


Content = TextContent | ThinkingContent | ToolUseContent


class CacheMissReason(Struct, frozen=True):
    """The cause of a cache miss, and the number of prompt tokens that missed because of it.

    The last two types mean that the cause is unknown. These types have no number.
    """

    type: Literal[
        "model_changed",
        "system_changed",
        "tools_changed",
        "messages_changed",
        "previous_message_not_found",
        "unavailable",
    ]
    cache_missed_input_tokens: int | UnsetType = UNSET


class Diagnostics(Struct, frozen=True):
    """The reason why the prompt does not continue the previous message's prompt."""

    cache_miss_reason: CacheMissReason


class MessageReply(Struct, frozen=True, kw_only=True):
    """A whole answer. At a stream's start the content is empty."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Content]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage
    # None: the prompt missed nothing, or the request names no previous message
    diagnostics: Diagnostics | UnsetType | None = UNSET
    ratoon: RatoonReply | UnsetType = UNSET


class TokenCount(Struct, frozen=True):
    """The number of tokens of a prompt."""

    input_tokens: int


class TextDelta(Struct, frozen=True, tag_field="type", tag="text_delta"):
    """A delta of a text block."""

    text: str


class ThinkingDelta(Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """A delta of a thinking block."""

    thinking: str


class SignatureDelta(Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """The signature that ends a thinking block."""

    signature: str


class InputJsonDelta(Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """A delta of a call's arguments."""

    partial_json: str


ContentDelta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class MessageStart(Struct, frozen=True, tag_field="type", tag="message_start"):
    """The first event of a stream."""

    message: MessageReply


class ContentBlockStart(Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """The event that opens an empty block."""

    index: int
    content_block: Content


class ContentBlockDelta(Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """The event with a delta of the open block."""

    index: int
    delta: ContentDelta


class ContentBlockStop(Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """The event that closes a block."""

    index: int


class StopDelta(Struct, frozen=True):
    """The reason why the message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDeltaEvent(Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The event with the message's stop reason and usage."""

    delta: StopDelta
    usage: MessageUsage


class MessageStop(Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The last event of a stream."""


class Ping(Struct, frozen=True, tag_field="type", tag="ping"):
    """An empty event that keeps the connection alive."""


StreamEvent = (
    MessageStart
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDeltaEvent
    | MessageStop
    | Ping
)
