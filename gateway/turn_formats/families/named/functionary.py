"""Functionary 3.1 and 3.2: calls named by a tag, or by a line after `>>>`.

    <function=get_weather>{"city": "Oslo"}</function>

    >>>all
    Let me look.>>>get_weather
    {"city": "Oslo"}

The first form is 3.1, and the second form is 3.2. In 3.2 the recipient `all` begins a text, and the
prompt ends with the first `>>>`.
"""

import re
from collections.abc import Sequence
from typing import ClassVar

from gateway.turn_formats.calls import CallReader
from gateway.turn_formats.grammar import ANY_TEXT, GrammarText, checked, repeated
from gateway.turn_formats.pieces import TextPiece
from gateway.turn_formats.reading import Markers, Read
from gateway.turn_formats.shapes.block_format import BlockFormat, UnmarkedText
from gateway.turn_formats.turn_format import ToolSpec

_OPEN, _NAMED, _CLOSE = "<function=", ">", "</function>"
_SHOWN = re.compile(r"<function=[^<>{}]+>\s*\{")
_TO, _LINE, _ALL = ">>>", "\n", "all"
_SHOWN_AFTER = re.compile(r"(\A|>>>)[\w.-]+\n\s*\{|>>>\$\{recipient\}")
_TEXT_START = re.compile(r"^start:", re.MULTILINE)
_NAME = re.compile(r"[^<>\n{]*")
_MAX_NAME = 256


class FunctionaryV31Format(BlockFormat):
    """The `ToolFormat` of Functionary 3.1."""

    name: ClassVar[str] = "functionary_v31"
    markers: ClassVar[tuple[str, ...]] = ()
    call_marks: ClassVar[tuple[str, ...]] = (_OPEN,)
    trigger, closes = _OPEN, _CLOSE

    def is_in(self, template: str) -> bool:
        """Tell whether a template, or a turn that it shows, has JSON in a function's tag."""
        return _SHOWN.search(template) is not None and "<tool_call>" not in template

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        return _Reader(tools, _OPEN, _NAMED, _CLOSE)

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        return f"{grammar.spelled(tool.name + _NAMED)} {grammar.arguments(tool)}"


class FunctionaryV32Format(UnmarkedText):
    """The `ToolFormat` of Functionary 3.2."""

    name: ClassVar[str] = "functionary_v32"
    markers: ClassVar[tuple[str, ...]] = ()
    call_marks: ClassVar[tuple[str, ...]] = ()
    marks_text: ClassVar[bool] = True

    def is_in(self, template: str) -> bool:
        """Tell whether a chat template, or a turn that it shows, writes recipients after `>>>`."""
        return _SHOWN_AFTER.search(template) is not None

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        return _Reader(tools, _TO, _LINE, _TO, text_to=_ALL)

    def call_grammar(
        self, tools: Sequence[ToolSpec], *, at_least: int = 1, at_most: int | None = None
    ) -> str:
        """Write the grammar of `at_least` (>= 1) to `at_most` calls after the prompt's marker."""
        checked(tools, at_least, at_most)
        grammar = GrammarText(self.special_tokens)
        calls = repeated(_call(grammar, tools), grammar.spelled(_TO), at_least, at_most)
        return grammar.source(calls)

    def text_grammar(self, tools: Sequence[ToolSpec]) -> str:
        """Write the grammar of calls, of a text, or of a text and calls."""
        grammar = GrammarText(self.special_tokens)
        text = f"{grammar.spelled(_ALL + _LINE)} {ANY_TEXT}"
        if not tools:
            return grammar.source(text)
        calls = repeated(_call(grammar, tools), grammar.spelled(_TO), 1, None)
        before = f"{grammar.spelled(_ALL + _LINE)} {grammar.up_to(_TO)}"
        return grammar.source(f"({before})? {calls} | {text}")

    def around(self, text: str, prompt: str) -> str:
        """Write the grammar of `text` after its recipient, if the prompt asks for a recipient."""
        if not prompt.endswith(_TO):
            return text
        grammar = GrammarText(self.special_tokens, prefix="answer")
        start = grammar.source(f"{grammar.spelled(_ALL + _LINE)} said")
        return f"{start}{_TEXT_START.sub('said:', text, count=1)}"


def _call(grammar: GrammarText, tools: Sequence[ToolSpec]) -> str:
    return grammar.one_of(
        "call", [f"{grammar.spelled(one.name + _LINE)} {grammar.arguments(one)}" for one in tools]
    )


class _Reader(CallReader):
    """A parser of calls: the marker `opens`, a name, `named`, JSON arguments, and `closes`.

    After the name `text_to` a text follows. With `text_to` the prompt may end with the first
    marker.
    """

    def __init__(
        self, tools: Sequence[ToolSpec], opens: str, named: str, closes: str, text_to: str = ""
    ) -> None:
        super().__init__(tools)
        self._opens, self._named, self._closes = Markers(opens), Markers(named), Markers(closes)
        self._ends_itself = opens != closes
        self._text_to = text_to

    def turn(self) -> Read[None]:
        if self._text_to:
            yield from self.literal(self._opens)
            yield from self._message()
        while (yield from self.until(self._opens, TextPiece)):
            yield from self._message()
        self.send(TextPiece)

    def _message(self) -> Read[None]:
        """Read a call or the head of a text after a marker. If neither follows, send the marker."""
        marked = len(self.held())
        name = yield from self.run(_NAME, _MAX_NAME)
        is_named = yield from self.literal(self._named)
        if is_named and self._text_to and name.strip() == self._text_to:
            self.drop()
        elif is_named and (yield from self.call_of(name.strip(), self._closes)):
            yield from self._end()
        else:
            held = self.held()
            self.drop()
            self.hold(held[:marked])
            self.send(TextPiece)
            self.put_back(held[marked:])

    def _end(self) -> Read[None]:
        yield from self.spaces()
        if self._ends_itself and (yield from self.closing(self._closes)):
            yield from self.spaces()
        self.drop()
