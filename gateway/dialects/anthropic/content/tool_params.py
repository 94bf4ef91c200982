"""The Structs of tools that a request declares or that its turns change.

Unknown fields are ignored.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct

from gateway.prompts.chats.chat_json import CacheControl


class ToolParam(Struct, frozen=True, kw_only=True):
    """A tool. A caller's own tool has a JSON schema. Anthropic's tool has a known `type`."""

    name: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    cache_control: CacheControl | None = None


class ToolReference(Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_reference"):
    """A reference to a tool by its name."""

    name: str


class McpToolReference(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_tool_reference"
):
    """A reference to a tool of an MCP server. The gateway connects to no MCP servers."""

    server_name: str
    name: str


class McpToolsetReference(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_toolset_reference"
):
    """A reference to all tools of an MCP server."""

    server_name: str


class ToolDefinition(Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_definition"):
    """A tool that a turn of the conversation defines."""

    definition: ToolParam


Removed = ToolReference | McpToolReference | McpToolsetReference
Added = Removed | ToolDefinition
