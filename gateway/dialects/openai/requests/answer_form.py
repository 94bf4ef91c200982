"""The form of the answer to a chat: the tools that may or must be called, and its text.

Elsewhere: how a call or a grammar is written for the model (`gateway/prompts/answer_forms.py`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct

from gateway.dialects.openai.requests.schema import ChatRequest
from gateway.dialects.openai.requests.structured_outputs import text_form
from gateway.dialects.tool_choice import must_call, only
from gateway.http.bodies.body import parse_part
from gateway.prompts.generation_request import AnswerForm
from gateway.turn_formats.turn_format import ToolSpec


class _Named(Struct, frozen=True):
    name: str


class _FunctionChoice(Struct, frozen=True):
    function: _Named


class _CustomChoice(Struct, frozen=True):
    custom: _Named


class _Allowed(Struct, frozen=True):
    mode: Literal["auto", "required"]
    tools: list[Raw]


class _AllowedTools(Struct, frozen=True):
    allowed_tools: _Allowed


_Tool: TypeAlias = _FunctionChoice | _CustomChoice
_Word: TypeAlias = Literal["none", "auto", "required", "any"] | None


class _TypedTool(Struct, frozen=True):
    type: Literal["function", "custom"] = "function"


class _Typed(Struct, frozen=True):
    # Hugging Face's clients leave the type out
    type: Literal["function", "custom", "allowed_tools"] = "function"


class _Sent(Struct, frozen=True):
    tool_choice: _Word | _Typed


_SENT = msgspec.json.Decoder(_Sent)
_TYPED_TOOL = msgspec.json.Decoder(_TypedTool)
_FUNCTION = msgspec.json.Decoder(_FunctionChoice)
_CUSTOM = msgspec.json.Decoder(_CustomChoice)
_ALLOWED = msgspec.json.Decoder(_AllowedTools)


def form_of_chat(wire: ChatRequest, tools: tuple[ToolSpec, ...]) -> AnswerForm:
    """Read the answer form that `wire` asks for; raise BadRequest for a wrong field."""
    form = replace(
        text_form(wire),
        tools=tools,
        most_calls=1 if wire.parallel_tool_calls is False else None,
    )
    match _choice_of(wire.tool_choice):
        case "none":
            return replace(form, most_calls=0)
        case None | "auto":
            return form
        case "required" | "any":  # `any` is Mistral's word for `required`
            return must_call(form)
        case _FunctionChoice(named) | _CustomChoice(named):
            return only(replace(form, most_calls=1), [named.name], least_calls=1)
        case _AllowedTools(allowed):
            names = _names_of(allowed.tools)
            return only(form, names, least_calls=int(allowed.mode == "required"))


def _choice_of(raw: Raw) -> _Word | _Tool | _AllowedTools:
    spelled, where = bytes(raw), "tool_choice"
    sent = parse_part(_SENT, b'{"tool_choice":%b}' % spelled).tool_choice if spelled else None
    if not isinstance(sent, _Typed):
        return sent
    if sent.type == "allowed_tools":
        return parse_part(_ALLOWED, spelled, where)
    return _tool_of(spelled, where)


def _tool_of(spelled: bytes, where: str) -> _Tool:
    if parse_part(_TYPED_TOOL, spelled, where).type == "custom":
        return parse_part(_CUSTOM, spelled, where)
    return parse_part(_FUNCTION, spelled, where)


def _names_of(tools: Sequence[Raw]) -> list[str]:
    where = "tool_choice.allowed_tools.tools"
    read = [_tool_of(bytes(one), f"{where}[{place}]") for place, one in enumerate(tools)]
    return [
        one.custom.name if isinstance(one, _CustomChoice) else one.function.name for one in read
    ]
