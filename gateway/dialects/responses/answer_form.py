"""What may answer: which functions may or must be called, and how the text looks.

Functions are sent flat, and shown to the model in the form that chat templates know. A hosted tool
is refused: nobody here would run it.

Knows: `tools`, `tool_choice`, `parallel_tool_calls`, `text.format`. Does not know: how a call is
spelled for the model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct

from engine.link.messages import Grammar
from gateway.dialects.responses.schema import ResponsesRequest, TextFormat
from gateway.dialects.tool_choice import must_call, only
from gateway.errors import BadRequest
from gateway.http.body import parse_part
from gateway.prompts.chat_json import MAX_TOOLS, CacheControl, unsupported
from gateway.prompts.chat_template import Tool
from gateway.prompts.generation_request import AnswerForm
from gateway.turn_formats.turn_format import ToolSpec

_OBJECT = '{"type": "object"}'


class _Typed(Struct, frozen=True):
    type: str


class _Function(Struct, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema
    strict: bool | None = None
    cache_control: CacheControl | None = None


class _TypedTools(Struct, frozen=True):
    tools: Annotated[list[_Typed], Meta(max_length=MAX_TOOLS)] | None


class _Functions(Struct, frozen=True):
    tools: list[_Function] | None


class _Named(Struct, frozen=True, tag_field="type", tag="function"):
    name: str


class _Allowed(Struct, frozen=True, tag_field="type", tag="allowed_tools"):
    mode: Literal["auto", "required"]
    tools: list[_Named]


_ToolChoice: TypeAlias = Literal["none", "auto", "required"] | _Named | _Allowed | None


class _Choice(Struct, frozen=True):
    tool_choice: _ToolChoice


_TYPED = msgspec.json.Decoder(_TypedTools)
_FUNCTIONS = msgspec.json.Decoder(_Functions)
_CHOICE = msgspec.json.Decoder(_Choice)


def tools_and_form(wire: ResponsesRequest) -> tuple[list[Tool], AnswerForm]:
    """The tools as templates take them, and the form; BadRequest names the field."""
    functions = _functions_of(wire.tools)
    specs = tuple(ToolSpec(one.name, one.parameters, bool(one.strict)) for one in functions)
    form = AnswerForm(
        specs,
        most_calls=1 if wire.parallel_tool_calls is False else None,
        text=_grammar(wire.text.format) if wire.text is not None and wire.text.format else None,
        text_param="text.format.schema",
    )
    return [_template_form(one) for one in functions], _chosen(wire.tool_choice, form)


def marked_functions(raw: Raw) -> list[tuple[int, CacheControl]]:
    """The marks on tools that have been read, each with the place of its tool."""
    if b'"cache_control"' not in bytes(raw):
        return []
    marks = ((place, one.cache_control) for place, one in enumerate(_functions_of(raw)))
    return [(place, control) for place, control in marks if control is not None]


def _functions_of(raw: Raw) -> list[_Function]:
    if not bytes(raw):
        return []
    part = b'{"tools":%b}' % bytes(raw)
    for place, tool in enumerate(parse_part(_TYPED, part).tools or ()):
        if tool.type != "function":
            raise BadRequest(
                "only tools of type `function` are supported; hosted tools run elsewhere",
                code="unsupported_parameter",
                param=f"tools[{place}].type",
            )
    return parse_part(_FUNCTIONS, part).tools or []


def _template_form(function: _Function) -> Tool:
    named: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        named["description"] = function.description
    if function.parameters is not None:
        named["parameters"] = function.parameters
    return {"type": "function", "function": named}


def _chosen(raw: Raw, form: AnswerForm) -> AnswerForm:
    match _choice_of(raw):
        case "none":
            return replace(form, most_calls=0)
        case None | "auto":
            return form
        case "required":
            return must_call(form)
        case _Named(name):
            return only(replace(form, most_calls=1), [name], least_calls=1)
        case _Allowed(mode, tools):
            names = [tool.name for tool in tools]
            return only(form, names, least_calls=int(mode == "required"))


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


def _of_schema(schema: dict[str, Any] | None) -> Grammar:
    if schema is None:
        raise BadRequest(
            "`text.format` of type `json_schema` has no `schema`",
            code="missing_required_parameter",
            param="text.format.schema",
        )
    return Grammar("json_schema", msgspec.json.encode(schema).decode())
