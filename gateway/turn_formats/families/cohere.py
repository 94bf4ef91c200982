"""Cohere's Command R7B and A: a list of call objects, and marks around texts, too.

    <|START_ACTION|>[
        {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Oslo"}}
    ]<|END_ACTION|>

A text stands between `<|START_RESPONSE|>` and `<|END_RESPONSE|>`, in later models between
`<|START_TEXT|>` and `<|END_TEXT|>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import ClassVar

from gateway.turn_formats.calls import CallReader
from gateway.turn_formats.families.block_format import BlockFormat
from gateway.turn_formats.families.object_calls import ObjectReader
from gateway.turn_formats.grammar import ANY_TEXT, GrammarText
from gateway.turn_formats.turn_format import ToolSpec

_CALLS, _CALLS_END = "<|START_ACTION|>", "<|END_ACTION|>"
_OPENS = ("<|START_RESPONSE|>", "<|START_TEXT|>")
_CLOSES = ("<|END_RESPONSE|>", "<|END_TEXT|>")
_TURN = "<|CHATBOT_TOKEN|>"
_TEXT_START = re.compile(r"^start:", re.MULTILINE)


class CohereFormat(BlockFormat):
    """The `ToolFormat` of Command R7B and A."""

    name: ClassVar[str] = "cohere"
    marks_text: ClassVar[bool] = True
    markers: ClassVar[tuple[str, ...]] = (_CALLS, _CALLS_END, *_OPENS, *_CLOSES)
    call_marks: ClassVar[tuple[str, ...]] = (_CALLS,)
    trigger = _CALLS
    opens = "[\n    "
    closes = "\n]" + _CALLS_END
    between_calls = ",\n    "

    def is_in(self, template: str) -> bool:
        """Tell whether a chat template, or a turn that it shows, writes calls in this format."""
        return _CALLS in template and "tool_name" in template

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        """Make a parser of a turn that may call `tools`."""
        return ObjectReader(tools, _CALLS, _CALLS_END, (*_OPENS, *_CLOSES))

    def opening_after_text(self, grammar: GrammarText) -> str:
        """Write the grammar of any text up to a block, with or without its marks."""
        said = f"({_one_of(grammar, _OPENS)} ({' | '.join(map(grammar.up_to, _CLOSES))}))?"
        return f"{said} {super().opening_after_text(grammar)}"

    def last_text(self, grammar: GrammarText) -> str:
        """Write the grammar of the turn's last text."""
        return f"{_one_of(grammar, _OPENS)}? {ANY_TEXT} {_one_of(grammar, _CLOSES)}?"

    def around(self, text: str, prompt: str) -> str:
        """Write the grammar of `text` between the marks of a text."""
        grammar = GrammarText(self.special_tokens, prefix="response")
        said = prompt.rpartition(_TURN)[2]
        opens = "" if any(mark in said for mark in _OPENS) else f"{_one_of(grammar, _OPENS)}?"
        start = grammar.source(f"{opens} said {_one_of(grammar, _CLOSES)}?")
        return f"{start}{_TEXT_START.sub('said:', text, count=1)}"

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        """Write the grammar of one call of `tool` within a block."""
        name = json.dumps(tool.name, ensure_ascii=False)
        head = grammar.spelled('{"tool_call_id": "')
        named = grammar.spelled(f'", "tool_name": {name}, "parameters": ')
        end = grammar.spelled("}")
        return f"{head} /[0-9]{{1,3}}/ {named} {grammar.arguments(tool)} {end}"


def _one_of(grammar: GrammarText, marks: Sequence[str]) -> str:
    return f"({' | '.join(map(grammar.spelled, marks))})"
