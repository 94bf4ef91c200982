"""The form of an answer: the tools that may or must be called, and the text's schema.

Elsewhere: what a tool is (`tools.py`).
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from engine.link.messages import Grammar
from gateway.dialects.anthropic.schema import OutputFormat, PromptRequest, ToolChoice
from gateway.dialects.tool_choice import must_call, only
from gateway.prompts.form_length import bounded
from gateway.prompts.generation_request import AnswerForm
from gateway.turn_formats.turn_format import ToolSpec


def answer_form(wire: PromptRequest, specs: Sequence[ToolSpec]) -> AnswerForm:
    """Return the form of the answer to `wire`; raise BadRequest for contradictory fields."""
    choice = wire.tool_choice or ToolChoice(type="auto")
    format_, field = _format(wire)
    form = AnswerForm(
        tuple(specs),
        most_calls=1 if choice.disable_parallel_tool_use else None,
        text=None if format_ is None else _grammar(format_, field),
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
    if wire.output_config is not None and wire.output_config.format is not None:
        return wire.output_config.format, "output_config.format"
    return wire.output_format, "output_format"


def _grammar(format_: OutputFormat, field: str) -> Grammar:
    text = msgspec.json.encode(format_.schema).decode()
    return Grammar("json_schema", bounded(f"{field}.schema", text))
