"""Kimi K2: a section of calls between special tokens.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0
    <|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>

Each call has a name and a number. The model writes all of this on one line.
"""

from typing import ClassVar

from gateway.turn_formats.grammar import GrammarText
from gateway.turn_formats.shapes.named_calls import NamedCallFormat
from gateway.turn_formats.turn_format import ToolSpec

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"


class KimiK2Format(NamedCallFormat):
    """The `ToolFormat` of Kimi K2."""

    name: ClassVar[str] = "kimi_k2"
    marks = (_SECTION, _SECTION_END, _CALL, _CALL_END, _ARGUMENTS)
    markers: ClassVar[tuple[str, ...]] = marks
    call_marks: ClassVar[tuple[str, ...]] = (_SECTION, _CALL)
    trigger = _SECTION
    closes = _SECTION_END

    def is_in(self, template: str) -> bool:
        return _SECTION in template and _ARGUMENTS in template

    def called(self, grammar: GrammarText, tool: ToolSpec) -> str:
        """Write the grammar of the text that names `tool`, with the call's number."""
        return f"{grammar.spelled(f'functions.{tool.name}:')} /[0-9]{{1,3}}/"
