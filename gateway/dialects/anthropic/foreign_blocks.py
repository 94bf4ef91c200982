"""Blocks that are known and not supported, so that they are refused by name.

No model here sees pictures or reads files, and nothing runs tools for the caller.
"""

from __future__ import annotations

from msgspec import Struct


class ForeignBlock(Struct, frozen=True, tag_field="type"):
    """The base of all of them. What is in one is not looked at."""


class ImageBlock(ForeignBlock, frozen=True, tag="image"):
    """A picture."""


class DocumentBlock(ForeignBlock, frozen=True, tag="document"):
    """A file, or a text that is to be cited."""


class SearchResultBlock(ForeignBlock, frozen=True, tag="search_result"):
    """What a search found, to be cited."""


class ContainerUploadBlock(ForeignBlock, frozen=True, tag="container_upload"):
    """A file for a hosted machine."""


class ServerToolUseBlock(ForeignBlock, frozen=True, tag="server_tool_use"):
    """A call of a hosted tool."""


class WebSearchBlock(ForeignBlock, frozen=True, tag="web_search_tool_result"):
    """What it returned."""


class WebFetchBlock(ForeignBlock, frozen=True, tag="web_fetch_tool_result"):
    """What it returned."""


class CodeExecutionBlock(ForeignBlock, frozen=True, tag="code_execution_tool_result"):
    """What it returned."""


class BashBlock(ForeignBlock, frozen=True, tag="bash_code_execution_tool_result"):
    """What it returned."""


class TextEditorBlock(ForeignBlock, frozen=True, tag="text_editor_code_execution_tool_result"):
    """What it returned."""


class ToolSearchBlock(ForeignBlock, frozen=True, tag="tool_search_tool_result"):
    """What it returned."""


class McpToolUseBlock(ForeignBlock, frozen=True, tag="mcp_tool_use"):
    """A call that a hosted client of MCP made."""


class McpToolResultBlock(ForeignBlock, frozen=True, tag="mcp_tool_result"):
    """What it returned."""


class CompactionBlock(ForeignBlock, frozen=True, tag="compaction"):
    """A summary in place of all that came before."""


Foreign = (
    ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ContainerUploadBlock
    | ServerToolUseBlock
    | WebSearchBlock
    | WebFetchBlock
    | CodeExecutionBlock
    | BashBlock
    | TextEditorBlock
    | ToolSearchBlock
    | McpToolUseBlock
    | McpToolResultBlock
    | CompactionBlock
)
