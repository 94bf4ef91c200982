"""Cohere's Command R, R7B and A: a list of call objects.

    <|START_ACTION|>[
        {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Oslo"}}
    ]<|END_ACTION|>

Later models also put markers around texts: `<|START_RESPONSE|>` and `<|END_RESPONSE|>`, or
`<|START_TEXT|>` and `<|END_TEXT|>`. Command R and R+ write no markers around texts, and write calls
in a fence:

    Action:
    ```json
    [
        {
            "tool_name": "get_weather",
            "parameters": {"city": "Oslo"}
        }
    ]```
"""

import json
from collections.abc import Sequence
from typing import ClassVar

from gateway.turn_formats.calls import CallReader
from gateway.turn_formats.grammar import GrammarText
from gateway.turn_formats.shapes.marked_text import MarkedText
from gateway.turn_formats.shapes.object_calls import ObjectFormat, ObjectReader
from gateway.turn_formats.turn_format import ToolSpec

_CALLS, _CALLS_END = "<|START_ACTION|>", "<|END_ACTION|>"
_OPENS = ("<|START_RESPONSE|>", "<|START_TEXT|>")
_CLOSES = ("<|END_RESPONSE|>", "<|END_TEXT|>")


class CohereFormat(MarkedText):
    """The `ToolFormat` of Command R7B and A."""

    name: ClassVar[str] = "cohere"
    text_opens, text_closes = _OPENS, _CLOSES
    turn_begins: ClassVar[str] = "<|CHATBOT_TOKEN|>"
    markers: ClassVar[tuple[str, ...]] = (_CALLS, _CALLS_END, *_OPENS, *_CLOSES)
    call_marks: ClassVar[tuple[str, ...]] = (_CALLS,)
    trigger = _CALLS
    opens = "[\n    "
    closes = "\n]" + _CALLS_END
    between_calls = ",\n    "

    def is_in(self, template: str) -> bool:
        return _CALLS in template and "tool_name" in template

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        return ObjectReader(tools, (_CALLS,), _CALLS_END, (*_OPENS, *_CLOSES))

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        name = json.dumps(tool.name, ensure_ascii=False)
        head = grammar.spelled('{"tool_call_id": "')
        named = grammar.spelled(f'", "tool_name": {name}, "parameters": ')
        end = grammar.spelled("}")
        return f"{head} /[0-9]{{1,3}}/ {named} {grammar.arguments(tool)} {end}"


class CommandRFormat(
    ObjectFormat,
    begin="Action:",
    end="```",
    opens="\n```json\n[\n",
    between=",\n",
    closes="\n]",
):
    """The `ToolFormat` of Command R and R+."""

    name: ClassVar[str] = "command_r"

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        """Write the grammar of one call of `tool`, indented as in templates."""
        name = json.dumps(tool.name, ensure_ascii=False)
        space = " " * 8
        head = grammar.spelled(f'    {{\n{space}"tool_name": {name},\n{space}"parameters": ')
        return f"{head} {grammar.arguments(tool)} {grammar.spelled(chr(10) + '    }')}"
