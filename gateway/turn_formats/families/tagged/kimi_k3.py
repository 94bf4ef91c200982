"""Kimi K3: tags of special tokens around each text, call and argument.

    <|open|>response<|sep|>Let me look.<|close|>response<|sep|><|open|>tools<|sep|>
    <|open|>call tool="get_weather" index="1"<|sep|>
    <|open|>argument key="city" type="string"<|sep|>Oslo<|close|>argument<|sep|>
    <|close|>call<|sep|><|close|>tools<|sep|>

A tag has the name and the type of an argument. The model writes all of this on one line.
"""

from collections.abc import Sequence
from typing import ClassVar

from gateway.turn_formats.grammar import GrammarText
from gateway.turn_formats.shapes.marked_text import MarkedText
from gateway.turn_formats.shapes.tagged import TaggedFormat
from gateway.turn_formats.shapes.tags import Tags
from gateway.turn_formats.turn_format import ToolSpec

_OPEN, _CLOSE, _SEP = "<|open|>", "<|close|>", "<|sep|>"
_TEXT, _TEXT_END = f"{_OPEN}response{_SEP}", f"{_CLOSE}response{_SEP}"
_TYPES = {one: one for one in ("string", "number", "boolean", "null", "object", "array")}
_TYPES["integer"] = "number"


class KimiK3Format(MarkedText, TaggedFormat):
    """The `ToolFormat` of Kimi K3."""

    name: ClassVar[str] = "kimi_k3"
    text_opens: ClassVar[tuple[str, ...]] = (_TEXT,)
    text_closes: ClassVar[tuple[str, ...]] = (_TEXT_END,)
    turn_begins: ClassVar[str] = f'role="assistant"{_SEP}'
    tags: ClassVar[Tags] = Tags(
        tokens=(_OPEN, _CLOSE, _SEP),
        block=f"{_OPEN}tools{_SEP}",
        call=f'{_OPEN}call tool="',
        numbered='" index="',
        named=f'"{_SEP}',
        key=f'{_OPEN}argument key="',
        keyed=('" type="',),
        typed=tuple((kind, f'{written}"{_SEP}') for kind, written in _TYPES.items()),
        value_end=f"{_CLOSE}argument{_SEP}",
        call_end=f"{_CLOSE}call{_SEP}",
        block_end=f"{_CLOSE}tools{_SEP}",
        holds_many=True,
        line="",
    )

    def around_text(self, tools: Sequence[ToolSpec]) -> Sequence[str]:
        del tools
        return (_TEXT, _TEXT_END, f"{_CLOSE}message{_SEP}")

    def call_grammar(
        self, tools: Sequence[ToolSpec], *, at_least: int = 1, at_most: int | None = None
    ) -> str:
        """Write the grammar of an optional empty text, then calls of `tools`."""
        calls = super().call_grammar(tools, at_least=at_least, at_most=at_most)
        grammar = GrammarText(self.special_tokens)
        text = f"({grammar.spelled(_TEXT)}? {grammar.spelled(_TEXT_END)})?"
        return calls.replace("start: ", f"start: {text} ", 1)
