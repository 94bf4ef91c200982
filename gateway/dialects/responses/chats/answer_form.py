"""The form of an answer: the tools that may or must be called, and the format of the text.

Elsewhere: what a tool is (`toolset.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct

from engine.link.messages import Grammar
from gateway.dialects.responses.chats.toolset import Toolset
from gateway.dialects.responses.input_items.tool_entries import CALL_ITEMS, MAX_OFFERED, NAMELESS
from gateway.dialects.responses.schema import ResponsesRequest, TextFormat
from gateway.dialects.tool_choice import must_call, only
from gateway.errors import BadRequest
from gateway.http.bodies.body import parse_part
from gateway.prompts.chats.chat_json import unsupported
from gateway.prompts.form_length import bounded
from gateway.prompts.generation_request import AnswerForm

_OBJECT = '{"type": "object"}'


class _Chosen(Struct, frozen=True, kw_only=True):
    """The tool choice: a tool by name, a hosted tool by type, or a list of allowed tools."""

    type: str
    name: str | None = None
    namespace: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[_Chosen], Meta(max_length=MAX_OFFERED)] | None = None


_ToolChoice: TypeAlias = Literal["none", "auto", "required"] | _Chosen | None


class _Choice(Struct, frozen=True):
    tool_choice: _ToolChoice


_CHOICE = msgspec.json.Decoder(_Choice)


def answer_form(wire: ResponsesRequest, tools: Toolset) -> AnswerForm:
    """Read the answer form that `wire` asks for; raise BadRequest for a wrong field."""
    form = AnswerForm(
        tools.specs(),
        most_calls=1 if wire.parallel_tool_calls is False else None,
        text=_grammar(wire.text.format) if wire.text is not None and wire.text.format else None,
        text_param="text.format.schema",
    )
    match _choice_of(wire.tool_choice):
        case "none":
            return replace(form, most_calls=0)
        case None | "auto":
            return form
        case "required":
            return must_call(form)
        case _Chosen(type="allowed_tools") as allowed:
            return _allowed(allowed, form, tools)
        case chosen:
            names = [*_names(chosen, tools, "tool_choice")]
            return only(replace(form, most_calls=1), names, least_calls=1)


def _allowed(allowed: _Chosen, form: AnswerForm, tools: Toolset) -> AnswerForm:
    for name in ("mode", "tools"):
        if getattr(allowed, name) is None:
            raise _missing(f"tool_choice.{name}")
    run = [(at, one) for at, one in enumerate(allowed.tools or ()) if _runs(one, tools)]
    names = [name for at, one in run for name in _names(one, tools, f"tool_choice.tools[{at}]")]
    if not names and allowed.tools and allowed.mode == "auto":
        return replace(form, most_calls=0)
    return only(form, names, least_calls=int(allowed.mode == "required"))


def _names(chosen: _Chosen, tools: Toolset, where: str) -> Iterator[str]:
    """Yield the model's names of the chosen tools; raise BadRequest for an unknown tool."""
    if not _runs(chosen, tools):
        raise BadRequest(
            "a tool of this type does not run here, so it cannot be chosen",
            code="unsupported_parameter",
            param=f"{where}.type",
        )
    name = chosen.type if chosen.type in NAMELESS else chosen.name
    if name is None:
        raise _missing(f"{where}.name")
    found = tools.named(chosen.type, name, chosen.namespace)
    if not found:
        raise BadRequest("`tool_choice` names a tool that is not in `tools`", param="tool_choice")
    yield from found


def _runs(chosen: _Chosen, tools: Toolset) -> bool:
    """Return whether the chosen tool can be called: its type is known and not hosted."""
    is_hosted = chosen.type in tools.types_passed_over
    return chosen.type in CALL_ITEMS and not (chosen.type in NAMELESS and is_hosted)


def _missing(param: str) -> BadRequest:
    return BadRequest(f"`{param}` is missing", code="missing_required_parameter", param=param)


def _choice_of(raw: Raw) -> _ToolChoice:
    spelled = bytes(raw)
    return parse_part(_CHOICE, b'{"tool_choice":%b}' % spelled).tool_choice if spelled else None


def _grammar(asked: TextFormat) -> Grammar | None:
    match asked.type:
        case "text":
            return None
        case "json_object":
            return Grammar("json_schema", _OBJECT)
        case "json_schema":
            return _of_schema(asked.schema)
        case _:
            raise unsupported("text.format.type")


def _of_schema(schema: dict[str, Any] | bool | None) -> Grammar:
    if schema is None:
        raise BadRequest(
            "`text.format` of type `json_schema` has no `schema`",
            code="missing_required_parameter",
            param="text.format.schema",
        )
    text = msgspec.json.encode(schema).decode()
    return Grammar("json_schema", bounded("text.format.schema", text))
