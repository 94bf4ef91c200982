"""DeepSeek V3, R1 and V3.1: a block of calls between special tokens.

V3 and R1 write a line end between calls:

    <calls-begin><call-begin>function<sep>get_weather
    ```json
    {"city": "Oslo"}
    ```<call-end><calls-end>

V3.1 writes nothing between calls:

    <calls-begin><call-begin>get_weather<sep>{"city": "Oslo"}<call-end><calls-end>

The parser of each format reads both forms.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gateway.turn_formats.grammar import GrammarText
from gateway.turn_formats.shapes.named_calls import JSON_BEGIN, JSON_END, NamedCallFormat
from gateway.turn_formats.turn_format import ToolSpec, ToolsText

# The tokens have full-width bars and lower blocks, which ordinary text does not have.
_CALLS, _CALLS_END = (
    "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "<\uff5ctool\u2581calls\u2581end\uff5c>",
)
_CALL, _CALL_END = (
    "<\uff5ctool\u2581call\u2581begin\uff5c>",
    "<\uff5ctool\u2581call\u2581end\uff5c>",
)
_SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
_MARKS = (_CALLS, _CALLS_END, _CALL, _CALL_END, _SEPARATOR)

# V3 and R1 were trained without a tools text. Other servers describe the format with this text.
_TOLD_V3 = f"""## Tools

You can call these functions:

{{tools}}

A call must be written in exactly this format, with arguments that are valid JSON:
{_CALLS}{_CALL}function{_SEPARATOR}FUNCTION_NAME
{JSON_BEGIN}
{{{{"param1": "value1", "param2": "value2"}}}}
{JSON_END}{_CALL_END}{_CALLS_END}"""
_TOLD_V31 = f"""## Tools
You have access to the following tools:

{{tools}}

IMPORTANT: ALWAYS adhere to this exact format for tool use:
{_CALLS}{_CALL}tool_call_name{_SEPARATOR}tool_call_arguments{_CALL_END}\
{{{{additional_tool_calls}}}}{_CALLS_END}

Where:

- `tool_call_name` must be an exact match to one of the available tools
- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema
- For multiple tool calls, chain them directly without separators or spaces
"""


def _tools_text_v3(tools: Sequence[Mapping[str, Any]]) -> str:
    fences = (f"{JSON_BEGIN}\n{_spelled(tool)}\n{JSON_END}" for tool in tools)
    return _TOLD_V3.format(tools="\n\n".join(fences))


def _tools_text_v31(tools: Sequence[Mapping[str, Any]]) -> str:
    return _TOLD_V31.format(tools="\n\n".join(_described(tool["function"]) for tool in tools))


def _described(function: Mapping[str, Any]) -> str:
    parameters = _spelled(function.get("parameters") or {})
    described = function.get("description") or ""
    return f"### {function['name']}\nDescription: {described}\n\nParameters: {parameters}"


def _spelled(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class DeepSeekV31Format(NamedCallFormat):
    """The `ToolFormat` of DeepSeek V3.1."""

    name: ClassVar[str] = "deepseek_v31"
    marks = _MARKS
    markers: ClassVar[tuple[str, ...]] = _MARKS
    call_marks: ClassVar[tuple[str, ...]] = (_CALLS, _CALL)
    trigger = _CALLS
    closes = _CALLS_END

    @property
    def tools_text(self) -> ToolsText | None:
        """The tools text that the model was trained on, from DeepSeek's page on V3.1."""
        return _tools_text_v31

    def is_in(self, template: str) -> bool:
        return _CALLS in template and JSON_BEGIN not in template


class DeepSeekV3Format(DeepSeekV31Format):
    """The `ToolFormat` of DeepSeek V3, of R1 and of models distilled from R1."""

    name: ClassVar[str] = "deepseek_v3"
    between_calls = "\n"

    @property
    def tools_text(self) -> ToolsText | None:
        """The tools text for the system message, since these models' templates show no tools."""
        return _tools_text_v3

    def is_in(self, template: str) -> bool:
        return _CALLS in template and JSON_BEGIN in template

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        head = grammar.spelled(f"{_CALL}function{_SEPARATOR}{tool.name}\n{JSON_BEGIN}\n")
        tail = grammar.spelled(f"\n{JSON_END}{_CALL_END}")
        return f"{head} {grammar.arguments(tool)} {tail}"
