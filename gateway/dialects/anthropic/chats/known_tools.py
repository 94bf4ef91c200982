"""Anthropic's own tools that the client runs: a shell, an editor, a memory.

A request names a tool of this kind only by its type, since Anthropic's models know the tool. Other
models are shown the description and the schema that Anthropic documents.

Elsewhere: which tools a request has (`tools.py`).
"""

import re
from typing import Any

from msgspec.structs import replace

from gateway.dialects.anthropic.content.tool_params import ToolParam

OWN = (None, "custom")  # types of tools that the request itself describes
_VERSIONED = re.compile(r"(bash|text_editor|memory)_\d{8}")
_TEXT = {"type": "string"}
_LINES = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}


def _schema(required: tuple[str, ...], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*required]}


def _commands(*names: str) -> dict[str, Any]:
    return {"type": "string", "enum": [*names]}


_EDITED: dict[str, dict[str, Any]] = {
    "path": _TEXT,
    "view_range": _LINES,
    "file_text": _TEXT,
    "old_str": _TEXT,
    "new_str": _TEXT,
    "insert_line": {"type": "integer"},
    "insert_text": _TEXT,
}
_KNOWN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bash": (
        "bash",
        "Runs a command in a shell that stays open between calls. `restart` begins a new one.",
        _schema((), command=_TEXT, restart={"type": "boolean"}),
    ),
    "text_editor": (
        "str_replace_based_edit_tool",
        "Views and edits files. `view` shows a file, or its lines in `view_range`, or what is in a"
        " directory; `create` writes `file_text`; `str_replace` replaces `old_str`, which must be"
        " there once, by `new_str`; `insert` puts `insert_text` behind the line `insert_line`.",
        _schema(
            ("command", "path"),
            command=_commands("view", "create", "str_replace", "insert"),
            **_EDITED,
        ),
    ),
    "memory": (
        "memory",
        "Keeps files below /memories from one conversation to the next. `view`, `create`,"
        " `str_replace` and `insert` work on the file or directory `path`; `delete` removes it,"
        " `rename` gives `old_path` the name `new_path`.",
        _schema(
            ("command",),
            command=_commands("view", "create", "str_replace", "insert", "delete", "rename"),
            **_EDITED,
            old_path=_TEXT,
            new_path=_TEXT,
        ),
    ),
}


def described(tool: ToolParam) -> ToolParam | None:
    """Add the known name and schema to `tool`; return None if the client does not run the tool."""
    if tool.type in OWN:
        return tool
    found = _VERSIONED.fullmatch(tool.type or "")
    if found is None:
        return None
    name, description, schema = _KNOWN[found[1]]
    return replace(tool, name=tool.name or name, description=description, input_schema=schema)
