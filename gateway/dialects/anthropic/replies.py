"""Anthropic's answers as Structs, whole and as the events of a stream.

Knows: field names and their order. Does not know: where the values come from.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from gateway.dialects.explaining import RatoonReply

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class CacheCreation(Struct, frozen=True, kw_only=True):
    """Tokens written under a mark, by how long it asks for them to be kept."""

    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class ThinkingDetails(Struct, frozen=True):
    """The part of the output that nobody asked to see."""

    thinking_tokens: int


class ServerToolUse(Struct, frozen=True, kw_only=True):
    """Requests of tools that the server runs: there are none."""

    web_search_requests: int = 0
    web_fetch_requests: int = 0


class MessageUsage(Struct, frozen=True, kw_only=True):
    """Tokens of one request: the prompt has input + creation + read of them."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    cache_creation: CacheCreation
    output_tokens: int
    output_tokens_details: ThinkingDetails
    server_tool_use: ServerToolUse = ServerToolUse()
    service_tier: Literal["standard"] = "standard"
    speed: Literal["standard"] = "standard"
    inference_geo: None = None  # nobody says where the server is


class TextContent(Struct, frozen=True, tag_field="type", tag="text"):
    """A block of text."""

    text: str


class ThinkingContent(Struct, frozen=True, tag_field="type", tag="thinking"):
    """The model's thinking, if it is shown. Nobody signs it."""

    thinking: str
    signature: str = ""


class ToolUseContent(Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call."""

    id: str
    name: str
    input: dict[str, Any]


Content = TextContent | ThinkingContent | ToolUseContent


class CacheMissReason(Struct, frozen=True):
    """The change that caused a miss, and the tokens that could else have come from the cache.

    The last two types say that nothing is known, so they have no number.
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
    """The reason why the prompt is not a continuation of the one that was named."""

    cache_miss_reason: CacheMissReason


class MessageReply(Struct, frozen=True, kw_only=True):
    """The whole answer; at the start of a stream without content."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Content]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage
    diagnostics: Diagnostics | UnsetType | None = UNSET  # None: nothing was missed
    ratoon: RatoonReply | UnsetType = UNSET


class TokenCount(Struct, frozen=True):
    """The length of a prompt."""

    input_tokens: int


class TextDelta(Struct, frozen=True, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """More thinking."""

    thinking: str


class SignatureDelta(Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """The end of a block of thinking."""

    signature: str


class InputJsonDelta(Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """More of a call's arguments."""

    partial_json: str


ContentDelta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class MessageStart(Struct, frozen=True, tag_field="type", tag="message_start"):
    """The first event."""

    message: MessageReply


class ContentBlockStart(Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: Content


class ContentBlockDelta(Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """More of the block that is open."""

    index: int
    delta: ContentDelta


class ContentBlockStop(Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """The block is complete."""

    index: int


class StopDelta(Struct, frozen=True):
    """The reason why the message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDeltaEvent(Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The end of the message, with all that was used."""

    delta: StopDelta
    usage: MessageUsage


class MessageStop(Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The last event."""


class Ping(Struct, frozen=True, tag_field="type", tag="ping"):
    """Nothing, so that the connection is seen to live."""


StreamEvent = (
    MessageStart
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDeltaEvent
    | MessageStop
    | Ping
)
