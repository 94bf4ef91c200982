"""The content blocks of a turn as Structs, each with its `type`.

Unknown fields are ignored. Chat templates do not see a block's `cache_control`.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gateway.dialects.anthropic.content.foreign_blocks import Foreign
from gateway.dialects.anthropic.content.hosted_blocks import Hosted
from gateway.dialects.anthropic.content.tool_params import Added, Removed
from gateway.prompts.chats.chat_json import NULL, CacheControl


class _Block(Struct, frozen=True, kw_only=True, tag_field="type"):
    cache_control: CacheControl | None = None


class TextBlock(_Block, frozen=True, kw_only=True, tag="text"):
    """A block of text, in a turn of any role."""

    text: str


class ThinkingBlock(_Block, frozen=True, kw_only=True, tag="thinking"):
    """The assistant's thinking. Its signature is ignored."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(_Block, frozen=True, kw_only=True, tag="redacted_thinking"):
    """A block of thinking that another server encrypted."""

    data: str


class ToolUseBlock(_Block, frozen=True, kw_only=True, tag="tool_use"):
    """A tool call that the assistant made."""

    id: str
    name: str
    input: dict[str, Any]


class ToolReferenceBlock(_Block, frozen=True, kw_only=True, tag="tool_reference"):
    """A tool that the client's search has found. The prompt shows all tools, found or not."""

    tool_name: str


class ToolResultBlock(_Block, frozen=True, kw_only=True, tag="tool_result"):
    """The result of a tool call."""

    tool_use_id: str
    content: str | list[TextBlock | ToolReferenceBlock | Hosted | Foreign] | None = None
    is_error: bool | None = None


class ToolAdditionBlock(_Block, frozen=True, kw_only=True, tag="tool_addition"):
    """A block of a system message that allows calls of a tool from this turn on."""

    tool: Added


class ToolRemovalBlock(_Block, frozen=True, kw_only=True, tag="tool_removal"):
    """A block of a system message that forbids calls of a tool from this turn on."""

    tool: Removed


Block = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | ToolAdditionBlock
    | ToolRemovalBlock
    | Hosted
    | Foreign
)


Effort = Annotated[str, Meta(max_length=64)]


class TurnConfig(Struct, frozen=True, kw_only=True):
    """A system message's settings for the next answer."""

    effort: Effort | None = None


class InputMessage(Struct, frozen=True, kw_only=True):
    """One turn of the conversation. System turns may stand between other turns.

    A system message with `clear_at` is shown until the next user turn. A system message with an
    `output_config` may have no content.
    """

    role: Literal["user", "assistant", "system"]
    content: str | list[Block] | None = None
    clear_at: Literal["next_user_message", "never"] | None = None
    output_config: TurnConfig | None = None


_SYSTEM = {"role": {"enum": ["system"]}}
_SAID = {
    "anyOf": [
        {
            "required": ["content"],
            "properties": {"content": {"not": NULL}, "clear_at": NULL, "output_config": NULL},
        },
        {"required": ["content"], "properties": {**_SYSTEM, "content": {"not": NULL}}},
        {"required": ["output_config"], "properties": {**_SYSTEM, "output_config": {"not": NULL}}},
    ]
}
Turn = Annotated[InputMessage, Meta(extra_json_schema=_SAID)]
