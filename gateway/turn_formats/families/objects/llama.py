"""Llama 3 and 4: a JSON object that is the whole turn, or follows `<|python_tag|>`.

    {"name": "get_weather", "parameters": {"city": "Oslo"}}

`; ` separates calls. The parser also reads a list of calls, and a call in a Markdown fence that is
the whole turn. JSON within a text is no call, so after text only the tag begins a call. An object
with a member that calls do not have is text.

Llama 4 writes a text before its calls between `<|python_start|>` and `<|python_end|>`. Some of its
calls stand there too.

After the tag, Llama 3 writes calls of its built-in tools in Python's syntax:

    <|python_tag|>brave_search.call(query="Oslo")
"""

import re
from collections.abc import Sequence
from typing import ClassVar

from gateway.turn_formats.calls import MEMBERS, CallReader
from gateway.turn_formats.grammar import ANY_TEXT, GrammarText, checked, repeated
from gateway.turn_formats.pieces import TextPiece
from gateway.turn_formats.reading import Markers, Read
from gateway.turn_formats.shapes.block_format import UnmarkedText, call_object
from gateway.turn_formats.shapes.python_calls import PythonicReader
from gateway.turn_formats.turn_format import ToolSpec

_TAG = "<|python_tag|>"
_TAGS, _FENCES, _FENCE_ENDS = Markers(_TAG), Markers("```json", "```"), Markers("```")
_START, _END = "<|python_start|>", "<|python_end|>"
_STARTS, _ENDS = Markers(_START), Markers(_TAG, _END)
_BETWEEN = r'"; "'
_NAME, _MAX_NAME, _SUFFIX = re.compile(r"[\w.-]*"), 256, ".call"
_SPACE = r"[ \t\r\n]*"
_BEGINS_AS_CALL = rf"{_SPACE}\{{{_SPACE}\"({'|'.join(MEMBERS)})\""


class LlamaFormat(UnmarkedText):
    """The `ToolFormat` of Llama 3 and 4 with JSON calls."""

    name: ClassVar[str] = "llama3_json"
    markers: ClassVar[tuple[str, ...]] = (_TAG, _START, _END)
    call_marks: ClassVar[tuple[str, ...]] = (_TAG,)

    def is_in(self, template: str) -> bool:
        plain = template.replace('\\"', '"')
        return '{"name": ' in plain and '"parameters": ' in plain

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        return _LlamaReader(tools)

    def call_grammar(
        self, tools: Sequence[ToolSpec], *, at_least: int = 1, at_most: int | None = None
    ) -> str:
        checked(tools, at_least, at_most)
        grammar = GrammarText(self.special_tokens)
        return grammar.source(repeated(_call(grammar, tools), _BETWEEN, at_least, at_most))

    def text_grammar(self, tools: Sequence[ToolSpec]) -> str:
        """Write the grammar of calls, or of a text.

        If the tag is a token, the tag and calls may follow the text.
        """
        grammar = GrammarText(self.special_tokens)
        if not tools:
            return grammar.source(ANY_TEXT)
        calls = repeated(_call(grammar, tools), _BETWEEN, 1, None)
        if _TAG not in self.special_tokens:
            text = grammar.text_without(rf"({_BEGINS_AS_CALL}|.*{re.escape(_TAG)})")
            return grammar.source(f"{calls} | {text}")
        text = grammar.text_without(_BEGINS_AS_CALL)
        return grammar.source(f"{calls} | {text} ({grammar.spelled(_TAG)} {calls})?")


def _call(grammar: GrammarText, tools: Sequence[ToolSpec]) -> str:
    return grammar.one_of("call", [call_object(grammar, tool, "parameters") for tool in tools])


class _LlamaReader(PythonicReader):
    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        super().__init__(tools, _START, _END)

    def turn(self) -> Read[None]:
        yield from self.spaces()
        marks = _TAGS
        if self.tools and (yield from self.literal(_STARTS)):
            self.drop()
            yield from self.spaces()
            marks = _ENDS
        fence = yield from self.literal(_FENCES)
        yield from self.spaces()
        if (yield from self.peek()) in ("{", "["):
            yield from self._calls(is_fenced=bool(fence))
        while found := (yield from self.until(marks, TextPiece)):
            if found == _END:
                self.drop()
            yield from self._calls()
        self.send(TextPiece)

    def _calls(self, *, is_fenced: bool = False) -> Read[None]:
        yield from self.spaces()
        if (yield from self.peek()) not in ("{", "["):
            name = yield from self.run(_NAME, _MAX_NAME)
            if (yield from self.call_named(name.removesuffix(_SUFFIX), _TAGS)):
                yield from self.spaces()
                self.drop()
            return
        while (yield from self.call_objects(_TAGS)):
            if not (yield from self.next_block(_TAGS, _FENCE_ENDS if is_fenced else None)):
                return
            yield from self.spaces()
