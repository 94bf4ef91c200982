"""Solar Open: a list of calls, each with an id, a name and JSON arguments.

    <|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>
    {"city": "Oslo"}<|tool_call:end|><|calls|>

The model writes all of this on one line. A text also has markers: it stands between `<|content|>`
and `<|end|>`. The model stops at `<|calls|>`.
"""

from typing import ClassVar

from gateway.turn_formats.grammar import GrammarText
from gateway.turn_formats.shapes.marked_text import MarkedText
from gateway.turn_formats.shapes.named_calls import NamedCallFormat
from gateway.turn_formats.turn_format import ToolSpec

_CALLS, _CALLS_END = "<|tool_calls|>", "<|calls|>"
_CALL, _CALL_END = "<|tool_call:begin|>", "<|tool_call:end|>"
_NAME, _ARGUMENTS = "<|tool_call:name|>", "<|tool_call:args|>"
_TEXT, _TEXT_END, _TURN = "<|content|>", "<|end|>", "<|begin|>assistant"


class SolarOpenFormat(MarkedText, NamedCallFormat):
    """The `ToolFormat` of Solar Open."""

    name: ClassVar[str] = "solar_open"
    marks = (_CALLS, _CALLS_END, _CALL, _CALL_END, _ARGUMENTS)
    markers: ClassVar[tuple[str, ...]] = (*marks, _NAME, _TEXT, _TEXT_END, "<|begin|>")
    call_marks: ClassVar[tuple[str, ...]] = (_CALLS, _CALL)
    trigger = _CALLS
    id_end = _NAME
    around_text = (_TEXT, _TEXT_END, _TURN)
    text_opens: ClassVar[tuple[str, ...]] = (_TEXT,)
    text_closes: ClassVar[tuple[str, ...]] = (_TEXT_END + _TURN,)
    turn_begins: ClassVar[str] = _TURN

    def is_in(self, template: str) -> bool:
        return _CALL in template and _NAME in template

    def called(self, grammar: GrammarText, tool: ToolSpec) -> str:
        """Write the grammar of an id and the text that names `tool`."""
        return f"/[a-z0-9]{{10}}/ {grammar.spelled(_NAME + tool.name)}"
