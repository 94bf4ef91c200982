"""The conversion of Gemini's tools into template tools and callable tools.

Elsewhere: how a model writes calls (`gateway/turn_formats`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from gateway.dialects.gemini.chats.schemas import json_schema
from gateway.dialects.gemini.parts import listed
from gateway.dialects.gemini.schema import MAX_TOOLS, FunctionDeclaration, GeminiTool
from gateway.errors import BadRequest
from gateway.prompts.chats.chat_json import asks_something
from gateway.prompts.chats.chat_tools import NOT_RUN
from gateway.prompts.chats.forms import Tool
from gateway.prompts.chats.offered_tools import PassedOver
from gateway.turn_formats.turn_format import ToolSpec

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class DeclaredTools:
    """The tools of a request: forms for templates, specs for calls, and the ignored tools."""

    forms: tuple[Tool, ...]
    specs: tuple[ToolSpec, ...]
    passed_over: tuple[PassedOver, ...]

    @classmethod
    def of(cls, given: list[GeminiTool] | GeminiTool | None) -> DeclaredTools:
        """Read the tools; raise BadRequest for too many, a repeated name, or a wrong schema."""
        tools = listed(given)
        declared = [*_declared(tools)]
        if len(declared) > MAX_TOOLS:
            raise BadRequest(f"there are more than {MAX_TOOLS} functions", param="tools")
        forms, specs, names = list[Tool](), list[ToolSpec](), set[str]()
        for where, function in declared:
            if function.name in names:
                raise BadRequest("another function has this name", param=f"{where}.name")
            names.add(function.name)
            parameters = _parameters(function, where)
            said = {"name": function.name, "description": function.description or ""}
            forms.append({"type": "function", "function": {**said, "parameters": parameters}})
            specs.append(ToolSpec(function.name, parameters))
        return cls(tuple(forms), tuple(specs), tuple(_hosted(tools)))


def _declared(tools: Sequence[GeminiTool]) -> Iterator[tuple[str, FunctionDeclaration]]:
    for place, tool in enumerate(tools):
        for number, function in enumerate(listed(tool.function_declarations)):
            yield f"tools[{place}].functionDeclarations[{number}]", function


def _parameters(function: FunctionDeclaration, where: str) -> dict[str, Any]:
    if isinstance(function.parameters_json_schema, dict):
        return function.parameters_json_schema
    if function.parameters:
        return json_schema(function.parameters, f"{where}.parameters")
    return _NO_PARAMETERS


def _hosted(tools: Sequence[GeminiTool]) -> Iterator[PassedOver]:
    for place, tool in enumerate(tools):
        for field in msgspec.structs.fields(tool):
            if field.type is Raw and asks_something(getattr(tool, field.name)):
                yield PassedOver(f"tools[{place}].{field.encode_name}", field.name, NOT_RUN)
