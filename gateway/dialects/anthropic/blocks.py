"""The blocks of a turn as Structs, told apart by their `type`.

Fields that are not here are ignored, and so are the marks of the cache, which never reach a
template.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from gateway.dialects.anthropic.foreign_blocks import Foreign
from gateway.prompts.chat_json import CacheControl


class _Block(Struct, frozen=True, kw_only=True, tag_field="type"):
    cache_control: CacheControl | None = None


class TextBlock(_Block, frozen=True, kw_only=True, tag="text"):
    """Text, of anybody."""

    text: str


class ThinkingBlock(_Block, frozen=True, kw_only=True, tag="thinking"):
    """What the assistant thought. Its signature says nothing here."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(_Block, frozen=True, kw_only=True, tag="redacted_thinking"):
    """Thinking that only another server could read."""

    data: str


class ToolUseBlock(_Block, frozen=True, kw_only=True, tag="tool_use"):
    """A call that the assistant made."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(_Block, frozen=True, kw_only=True, tag="tool_result"):
    """What a call returned."""

    tool_use_id: str
    content: str | list[TextBlock | Foreign] | None = None
    is_error: bool | None = None


Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock | Foreign


class InputMessage(Struct, frozen=True, kw_only=True):
    """One turn. Some clients also send `system` turns between the others."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]
