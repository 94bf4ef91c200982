"""The `tools` of a chat: checked, and kept as they were sent, for the model's template.

A template shows the model a tool as it was sent, with its fields in the caller's order and those
that only the model knows. So a tool is checked as a Struct, and given on as a plain object.

Knows: what a tool looks like. Does not know: who may send tools (`refusals.py`), how the model
sees them, or what a call of one is: models' calls are not parsed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.body import parse_part
from gateway.chat_template import Tool

MAX_TOOLS = 128  # as many as OpenAI takes


class _Function(Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema
    strict: bool | None = None


class _Sent(Struct, frozen=True):
    type: Literal["function"]
    function: _Function


class _Checked(Struct, frozen=True):
    tools: Annotated[list[_Sent], Meta(max_length=MAX_TOOLS)] | None


class _Plain(Struct, frozen=True):
    tools: list[dict[str, Any]] | None


def _schema() -> dict[str, Any]:
    """Written out whole, since a reference would not resolve where a `Raw` field is described."""
    _, named = msgspec.json.schema_components([_Checked], ref_template="{name}")
    sent, field = named["_Sent"], named["_Checked"]["properties"]["tools"]
    sent["properties"]["function"] = {**named["_Function"], "title": "Function"}
    [tools] = [kind for kind in field["anyOf"] if kind["type"] == "array"]
    tools["items"] = {**sent, "title": "Tool"}
    return dict(field)


_CHECKED = msgspec.json.Decoder(_Checked)
_PLAIN = msgspec.json.Decoder(_Plain)

Tools = Annotated[Raw, Meta(extra_json_schema=_schema())]


def tools_of(raw: Raw) -> list[Tool] | None:
    """The tools in a field of a body that `parse` has seen; None for none and for an empty list.

    BadRequest that names the first field that is wrong, such as `tools[3].function.name`.
    """
    if not bytes(raw):
        return None
    part = b'{"tools":%b}' % bytes(raw)
    parse_part(_CHECKED, part)
    # Also what was passed over until now must be right: this reads every value.
    plain: list[Tool] | None = parse_part(_PLAIN, part).tools
    return plain or None


def holds_tools(raw: Raw) -> bool:
    """Whether the field is a list with something in it, right or wrong."""
    spelled = bytes(raw).strip()
    return spelled.startswith(b"[") and bool(spelled[1:-1].strip())
