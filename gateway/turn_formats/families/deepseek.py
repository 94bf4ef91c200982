"""DeepSeek V3, R1 and V3.1: a block of calls between special tokens.

V3 and R1, with a line's end between calls:

    <calls-begin><call-begin>function<sep>get_weather
    ```json
    {"city": "Oslo"}
    ```<call-end><calls-end>

V3.1, with nothing between calls:

    <calls-begin><call-begin>get_weather<sep>{"city": "Oslo"}<call-end><calls-end>

Both parsers read both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gateway.turn_formats.calls import CallReader
from gateway.turn_formats.families.block_format import BlockFormat
from gateway.turn_formats.grammar import GrammarText
from gateway.turn_formats.pieces import TextPiece
from gateway.turn_formats.reading import Markers, Read
from gateway.turn_formats.turn_format import ToolSpec, ToolsText

# Full-width bars and lower blocks, which ordinary text does not have.
_CALLS, _CALLS_END = (
    "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "<\uff5ctool\u2581calls\u2581end\uff5c>",
)
_CALL, _CALL_END = (
    "<\uff5ctool\u2581call\u2581begin\uff5c>",
    "<\uff5ctool\u2581call\u2581end\uff5c>",
)
_SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
_JSON, _JSON_END = "```json", "```"

_BEGINS, _CALL_BEGINS, _SEPARATES = Markers(_CALLS, _CALL), Markers(_CALL), Markers(_SEPARATOR)
_CALL_ENDS, _CALLS_ENDS, _ENDS = (
    Markers(_CALL_END),
    Markers(_CALLS_END),
    Markers(_CALL_END, _CALLS_END, _JSON_END),
)
_JSON_BEGINS, _JSON_ENDS = Markers(_JSON), Markers(_JSON_END)
_NAME = re.compile(r"[^<\n`{]*")
_BEGIN_ARGUMENTS = ("{", '"')
_MAX_NAME = 256


# V3 and R1 were trained on no tools text; other servers describe the format like this.
_TOLD_V3 = f"""## Tools

You can call these functions:

{{tools}}

A call must be written in exactly this format, with arguments that are valid JSON:
{_CALLS}{_CALL}function{_SEPARATOR}FUNCTION_NAME
{_JSON}
{{{{"param1": "value1", "param2": "value2"}}}}
{_JSON_END}{_CALL_END}{_CALLS_END}"""
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
    """Write the tools text, with each tool as JSON in a fence like a call's arguments."""
    fences = (f"{_JSON}\n{_spelled(tool)}\n{_JSON_END}" for tool in tools)
    return _TOLD_V3.format(tools="\n\n".join(fences))


def _tools_text_v31(tools: Sequence[Mapping[str, Any]]) -> str:
    return _TOLD_V31.format(tools="\n\n".join(_described(tool["function"]) for tool in tools))


def _described(function: Mapping[str, Any]) -> str:
    parameters = _spelled(function.get("parameters") or {})
    described = function.get("description") or ""
    return f"### {function['name']}\nDescription: {described}\n\nParameters: {parameters}"


def _spelled(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class DeepSeekV3Format(BlockFormat):
    """The `ToolFormat` of DeepSeek V3, of R1 and of models distilled from R1."""

    name: ClassVar[str] = "deepseek_v3"
    markers: ClassVar[tuple[str, ...]] = (_CALLS, _CALLS_END, _CALL, _CALL_END, _SEPARATOR)
    call_marks: ClassVar[tuple[str, ...]] = (_CALLS, _CALL)
    trigger = _CALLS
    closes = _CALLS_END
    between_calls = "\n"

    @property
    def tools_text(self) -> ToolsText | None:
        """The tools text for the system message, since these models' templates show no tools."""
        return _tools_text_v3

    def is_in(self, template: str) -> bool:
        """Tell whether a chat template, or a turn that it shows, writes calls in this format."""
        return _CALLS in template and _JSON in template

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        """Make a parser of a turn that may call `tools`."""
        return _DeepSeekReader(tools)

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        """Write the grammar of one call of `tool` within a block."""
        head = grammar.spelled(f"{_CALL}function{_SEPARATOR}{tool.name}\n{_JSON}\n")
        tail = grammar.spelled(f"\n{_JSON_END}{_CALL_END}")
        return f"{head} {grammar.arguments(tool)} {tail}"


class DeepSeekV31Format(BlockFormat):
    """The `ToolFormat` of DeepSeek V3.1."""

    name: ClassVar[str] = "deepseek_v31"
    markers: ClassVar[tuple[str, ...]] = DeepSeekV3Format.markers
    call_marks: ClassVar[tuple[str, ...]] = (_CALLS, _CALL)
    trigger = _CALLS
    closes = _CALLS_END
    between_calls = ""

    @property
    def tools_text(self) -> ToolsText | None:
        """The tools text that the model was trained on, from DeepSeek's page on V3.1."""
        return _tools_text_v31

    def is_in(self, template: str) -> bool:
        """Tell whether a chat template, or a turn that it shows, writes calls in this format."""
        return _CALLS in template and _JSON not in template

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        """Make a parser of a turn that may call `tools`."""
        return _DeepSeekReader(tools)

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        """Write the grammar of one call of `tool` within a block."""
        head = grammar.spelled(f"{_CALL}{tool.name}{_SEPARATOR}")
        return f"{head} {grammar.arguments(tool)} {grammar.spelled(_CALL_END)}"


class _DeepSeekReader(CallReader):
    def turn(self) -> Read[None]:
        while found := (yield from self.until(_BEGINS, TextPiece)):
            if found == _CALLS:
                yield from self.spaces()
                found = yield from self.literal(_CALL_BEGINS)
            if found:
                yield from self._calls()
            else:
                self.send(TextPiece)
        self.send(TextPiece)

    def _calls(self) -> Read[None]:
        """Read the calls after the marker of the first call."""
        while (yield from self._call()):
            if not (yield from self.next_block(_CALL_BEGINS, _CALL_ENDS)):
                yield from self.closing(_CALLS_ENDS)
                yield from self.spaces()
                self.drop()
                return

    def _call(self) -> Read[bool]:
        name = yield from self.run(_NAME, _MAX_NAME)
        if (yield from self.literal(_SEPARATES)):
            yield from self.spaces()
            is_name = (yield from self.peek()) in _BEGIN_ARGUMENTS
            if not is_name and self.known(name.strip()) is None:  # `name` was the call's type
                name = yield from self.run(_NAME, _MAX_NAME)
            yield from self.spaces()
            yield from self.closing(_JSON_BEGINS)
            if (yield from self.call_of(name.strip(), _ENDS)):
                yield from self.spaces()
                yield from self.closing(_JSON_ENDS)
                return True
        self.send(TextPiece)
        return False
