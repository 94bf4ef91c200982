"""What the answer to a chat may be: which tools may or must be called, and how its text looks.

Knows: OpenAI's `tool_choice`. Does not know: how a call or a grammar is spelled for the model
(`gateway/prompts/answer_forms.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct

from gateway.dialects.openai.schema import ChatRequest
from gateway.dialects.openai.structured_outputs import text_form
from gateway.dialects.tool_choice import must_call, only
from gateway.http.body import parse_part
from gateway.prompts.chat_tools import specs_of
from gateway.prompts.generation_request import AnswerForm
from gateway.prompts.templates.forms import Tool


class _Named(Struct, frozen=True):
    name: str


class _FunctionChoice(Struct, frozen=True, tag_field="type", tag="function"):
    function: _Named


class _CustomChoice(Struct, frozen=True, tag_field="type", tag="custom"):
    custom: _Named


class _Allowed(Struct, frozen=True):
    mode: Literal["auto", "required"]
    tools: list[_FunctionChoice | _CustomChoice]


class _AllowedTools(Struct, frozen=True, tag_field="type", tag="allowed_tools"):
    allowed_tools: _Allowed


_ToolChoice: TypeAlias = (
    Literal["none", "auto", "required"] | _FunctionChoice | _CustomChoice | _AllowedTools | None
)


class _Choice(Struct, frozen=True):
    tool_choice: _ToolChoice


_CHOICE = msgspec.json.Decoder(_Choice)


def form_of_chat(wire: ChatRequest, tools: Sequence[Tool] | None) -> AnswerForm:
    """The form that `wire` asks for, with the `tools` in it; BadRequest names what is wrong."""
    form = replace(
        text_form(wire),
        tools=specs_of(tools or ()),
        most_calls=1 if wire.parallel_tool_calls is False else None,
    )
    match _choice_of(wire.tool_choice):
        case "none":
            return replace(form, most_calls=0)
        case None | "auto":
            return form
        case "required":
            return must_call(form)
        case _FunctionChoice(named) | _CustomChoice(named):
            return only(replace(form, most_calls=1), [named.name], least_calls=1)
        case _AllowedTools(allowed):
            names = [_name_of(tool) for tool in allowed.tools]
            return only(form, names, least_calls=int(allowed.mode == "required"))


def _name_of(choice: _FunctionChoice | _CustomChoice) -> str:
    return choice.custom.name if isinstance(choice, _CustomChoice) else choice.function.name


def _choice_of(raw: Raw) -> _ToolChoice:
    spelled = bytes(raw)
    return parse_part(_CHOICE, b'{"tool_choice":%b}' % spelled).tool_choice if spelled else None
