"""The blocks of hosted tools, which another server has run.

An agent that used another server before has these blocks in its history. The model is shown a call
and its result if both are in one turn of the assistant. The other blocks are left out, and the
answer reports the omission.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from gateway.prompts.chats.chat_json import CacheControl
from gateway.prompts.chats.offered_tools import PassedOver

_NOT_THERE = "the hosted tool's call and what it returned are not both in the turn"
_NO_FILES = "no file is kept here, so the model is not shown it"
_DEEP = 5  # maximum depth in a result at which unreadable parts are left out


class HostedBlock(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base of hosted tools' blocks."""

    cache_control: CacheControl | None = None


class HostedUse(HostedBlock, frozen=True, kw_only=True):
    """The base of hosted tools' calls."""

    id: str = ""
    name: str = ""
    input: Any = None


class ServerToolUseBlock(HostedUse, frozen=True, kw_only=True, tag="server_tool_use"):
    """A call of a hosted tool."""


class McpToolUseBlock(HostedUse, frozen=True, kw_only=True, tag="mcp_tool_use"):
    """A call that another server's MCP client made."""


class HostedResult(HostedBlock, frozen=True, kw_only=True):
    """The base of hosted tools' results."""

    tool_use_id: str = ""
    content: Any = None
    is_error: bool | None = None


class WebSearchBlock(HostedResult, frozen=True, kw_only=True, tag="web_search_tool_result"):
    """The result of a web search."""


class WebFetchBlock(HostedResult, frozen=True, kw_only=True, tag="web_fetch_tool_result"):
    """A fetched web page."""


class CodeExecutionBlock(HostedResult, frozen=True, kw_only=True, tag="code_execution_tool_result"):
    """The output of code that a hosted tool executed."""


class BashBlock(HostedResult, frozen=True, kw_only=True, tag="bash_code_execution_tool_result"):
    """The output of a shell command that a hosted tool ran."""


class TextEditorBlock(
    HostedResult, frozen=True, kw_only=True, tag="text_editor_code_execution_tool_result"
):
    """The outcome of a hosted editor's change to a file."""


class ToolSearchBlock(HostedResult, frozen=True, kw_only=True, tag="tool_search_tool_result"):
    """The tools that a hosted search found."""


class McpToolResultBlock(HostedResult, frozen=True, kw_only=True, tag="mcp_tool_result"):
    """The result of a call that another server's MCP client made."""


class ContainerUploadBlock(HostedBlock, frozen=True, kw_only=True, tag="container_upload"):
    """A file uploaded to a hosted container."""


Hosted = (
    ServerToolUseBlock
    | McpToolUseBlock
    | WebSearchBlock
    | WebFetchBlock
    | CodeExecutionBlock
    | BashBlock
    | TextEditorBlock
    | ToolSearchBlock
    | McpToolResultBlock
    | ContainerUploadBlock
)


def shown_calls(blocks: Sequence[object]) -> frozenset[str]:
    """Return the ids of hosted calls in a turn that have a name and a later result."""
    called: set[str] = set()
    returned: set[str] = set()
    for block in blocks:
        if isinstance(block, HostedUse) and block.name:
            called.add(block.id)
        elif isinstance(block, HostedResult) and block.tool_use_id in called:
            returned.add(block.tool_use_id)
    return frozenset(returned)


def is_passed_over(block: object, shown: frozenset[str]) -> bool:
    """Return whether `block` is a hosted tool's block that belongs to none of the `shown` calls."""
    match block:
        case HostedUse():
            return block.id not in shown
        case HostedResult():
            return block.tool_use_id not in shown
    return isinstance(block, ContainerUploadBlock)


def passed_over(block: HostedBlock, where: str) -> PassedOver:
    """Make the note that the model is not shown `block`."""
    reason = _NO_FILES if isinstance(block, ContainerUploadBlock) else _NOT_THERE
    return PassedOver(where, str(type(block).__struct_config__.tag), reason)


def result_text(block: HostedResult) -> str:
    """Write a hosted call's result as text, or as JSON if a part of the result is not text."""
    content = _readable("" if block.content is None else block.content, _DEEP)
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(map(_is_text, content)):
        return "\n".join(part["text"] for part in content)
    return msgspec.json.encode(content).decode()


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )


def _readable(value: Any, deep: int) -> Any:
    """Return `value` without encrypted fields and bytes of files."""
    if deep and isinstance(value, list):
        return [_readable(one, deep - 1) for one in value]
    if deep and isinstance(value, dict):
        is_file = value.get("type") == "base64"
        return {
            name: _readable(one, deep - 1)
            for name, one in value.items()
            if not name.startswith("encrypted_") and not (is_file and name == "data")
        }
    return value
