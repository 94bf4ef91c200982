"""From Anthropic's tools to what a template shows, and to what an answer may be.

Knows: `tools`, `tool_choice` and the schema of an answer. Does not know: how a model writes calls
(`gateway/turn_formats`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from engine.link.messages import Grammar
from gateway.dialects.anthropic.schema import OutputFormat, PromptRequest, ToolChoice, ToolParam
from gateway.dialects.tool_choice import must_call, only
from gateway.errors import BadRequest
from gateway.prompts.chat_json import unsupported
from gateway.prompts.generation_request import AnswerForm
from gateway.prompts.templates.forms import Tool
from gateway.turn_formats.turn_format import ToolSpec

_OWN = (None, "custom")  # types of tools that the caller runs and describes


def tools_of(wire: PromptRequest) -> list[ToolSpec]:
    """The tools that may be called; BadRequest for hosted, nameless and equally named ones."""
    names: set[str] = set()
    specs = []
    for place, tool in enumerate(wire.tools or ()):
        spec = _spec(tool, f"tools[{place}]")
        if spec.name in names:
            raise BadRequest("another tool has this name", param=f"tools[{place}].name")
        names.add(spec.name)
        specs.append(spec)
    return specs


def _spec(tool: ToolParam, where: str) -> ToolSpec:
    if tool.type not in _OWN:
        raise unsupported(f"{where}.type", unless='it is "custom": hosted tools do not run here')
    if tool.name is None:
        raise _missing(f"{where}.name")
    if tool.input_schema is None:
        raise _missing(f"{where}.input_schema")
    return ToolSpec(tool.name, tool.input_schema, bool(tool.strict))


def _missing(param: str) -> BadRequest:
    return BadRequest(f"`{param}` is missing", code="missing_required_parameter", param=param)


def template_forms(tools: Sequence[ToolParam]) -> list[Tool] | None:
    """Tools as chat templates, which know OpenAI's form, take them; None for none."""
    return [{"type": "function", "function": _function(tool)} for tool in tools] or None


def _function(tool: ToolParam) -> Tool:
    described = {"name": tool.name, "description": tool.description or ""}
    return {**described, "parameters": tool.input_schema}


def answer_form(wire: PromptRequest, specs: Sequence[ToolSpec]) -> AnswerForm:
    """What may answer `wire`, whose tools are `specs`; BadRequest for what contradicts itself."""
    choice = wire.tool_choice or ToolChoice(type="auto")
    format_, field = _format(wire)
    form = AnswerForm(
        tuple(specs),
        most_calls=1 if choice.disable_parallel_tool_use else None,
        text=None if format_ is None else _grammar(format_),
        text_param=field,
    )
    match choice.type:
        case "auto":
            return form
        case "none":
            return replace(form, most_calls=0)
        case "any":
            return must_call(form)
        case "tool":
            return only(form, [choice.name or ""], least_calls=1)


def _format(wire: PromptRequest) -> tuple[OutputFormat | None, str]:
    """The schema of the answer's text, and the field that it is in."""
    if wire.output_config is not None and wire.output_config.format is not None:
        return wire.output_config.format, "output_config.format"
    return wire.output_format, "output_format"


def _grammar(format_: OutputFormat) -> Grammar:
    return Grammar("json_schema", msgspec.json.encode(format_.schema).decode())
