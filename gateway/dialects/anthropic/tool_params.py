"""Tools as Structs, where a request declares them and where a conversation changes them.

Fields that are not here are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from gateway.prompts.chats.chat_json import CacheControl


class ToolParam(Struct, frozen=True, kw_only=True):
    """A tool. The caller's own have a schema; Anthropic's have a `type` that says what they are."""

    name: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None


class ToolReference(Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_reference"):
    """A tool by its name."""

    name: str


class McpToolReference(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_tool_reference"
):
    """A tool of an MCP server; there are none here."""

    server_name: str
    name: str


class McpToolsetReference(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_toolset_reference"
):
    """All tools of an MCP server."""

    server_name: str


class ToolDefinition(Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_definition"):
    """A tool that the conversation brings."""

    definition: ToolParam


Removed = ToolReference | McpToolReference | McpToolsetReference
Added = Removed | ToolDefinition
