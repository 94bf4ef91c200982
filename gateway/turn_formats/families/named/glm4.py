"""GLM-4 before 4.5: a tool's name on the turn's first line, and JSON arguments after it.

    get_weather
    {"city": "Oslo"}

A text has an empty first line. Several calls have `<|assistant|>` between them. The model stops at
`<|observation|>`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gateway.turn_formats.calls import CallReader
from gateway.turn_formats.grammar import ANY_TEXT, GrammarText, checked, repeated
from gateway.turn_formats.pieces import TextPiece
from gateway.turn_formats.reading import Markers, Read
from gateway.turn_formats.shapes.block_format import UnmarkedText
from gateway.turn_formats.turn_format import ToolSpec, ToolsText, WrittenCall

_BEGIN = "<|assistant|>"
_BEGINS, _LINE = Markers(_BEGIN), Markers("\n")
_NAME = re.compile(r"[^\n<{]*")
_MAX_NAME = 256
_TOLD = "\n在调用上述函数时，请使用 Json 格式表示调用的参数。"  # noqa: RUF001


def _tools_text(tools: Sequence[Mapping[str, Any]]) -> str:
    functions = [tool["function"] for tool in tools]
    described = (
        f"## {one['name']}\n\n{json.dumps(one, ensure_ascii=False, indent=4)}{_TOLD}"
        for one in functions
    )
    return "# 可用工具\n\n" + "\n\n".join(described)


class Glm4Format(UnmarkedText):
    """The `ToolFormat` of GLM-4 before 4.5."""

    name: ClassVar[str] = "glm4"
    markers: ClassVar[tuple[str, ...]] = (_BEGIN,)
    call_marks: ClassVar[tuple[str, ...]] = ()
    result_role: ClassVar[str] = "observation"

    @property
    def tools_text(self) -> ToolsText | None:
        """The tools text of the model's template, which shows tools only within a message."""
        return _tools_text

    def turns(self, text: str, calls: Sequence[WrittenCall]) -> Sequence[Mapping[str, str]] | None:
        """Write each call as a message. The template's first line of a message is `metadata`, here
        the tool's name.
        """
        said = [{"content": text}] if text.strip() else []
        spelled = [(name, json.dumps(one, ensure_ascii=False)) for name, one in calls]
        return [*said, *({"metadata": name, "content": one} for name, one in spelled)]

    def is_in(self, template: str) -> bool:
        return "[gMASK]" in template and "metadata" in template

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        return _Reader(tools)

    def call_grammar(
        self, tools: Sequence[ToolSpec], *, at_least: int = 1, at_most: int | None = None
    ) -> str:
        checked(tools, at_least, at_most)
        grammar = GrammarText(self.special_tokens)
        calls = repeated(_call(grammar, tools), grammar.spelled(_BEGIN), at_least, at_most)
        return grammar.source(calls)

    def text_grammar(self, tools: Sequence[ToolSpec]) -> str:
        """Write the grammar of calls, or of a text that does not begin like a tool's call."""
        grammar = GrammarText(self.special_tokens)
        if not tools:
            return grammar.source(ANY_TEXT)
        calls = repeated(_call(grammar, tools), grammar.spelled(_BEGIN), 1, None)
        names = "|".join(re.escape(tool.name) for tool in tools)
        text = grammar.text_without(rf"\s*({names})\s*\{{")
        return grammar.source(f"{calls} | {text}")


def _call(grammar: GrammarText, tools: Sequence[ToolSpec]) -> str:
    heads = [(grammar.spelled(f"{tool.name}\n"), tool) for tool in tools]
    return grammar.one_of("call", [f"{head} {grammar.arguments(tool)}" for head, tool in heads])


class _Reader(CallReader):
    def turn(self) -> Read[None]:
        yield from self._message()
        while (yield from self.until(_BEGINS, TextPiece)):
            yield from self._message()
        self.send(TextPiece)

    def _message(self) -> Read[None]:
        """Read a call after the held marker. If the text is no call, send the marker."""
        marked = len(self.held())
        yield from self.spaces()
        name = yield from self.run(_NAME, _MAX_NAME)
        is_named = yield from self.literal(_LINE)
        if is_named and (yield from self.call_of(name.strip(), _BEGINS)):
            yield from self.spaces()
            self.drop()
            return
        held = self.held()
        self.drop()
        self.hold(held[:marked])
        self.send(TextPiece)
        self.put_back(held[marked:])
