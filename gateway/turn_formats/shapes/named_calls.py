"""The calls of several families: a section of names and JSON arguments between markers.

A family gives its markers. The parser also reads a type before the name, and a fence around the
arguments, which DeepSeek V3 writes.
"""

import re
from collections.abc import Sequence
from typing import ClassVar

from gateway.turn_formats.calls import CallReader
from gateway.turn_formats.grammar import GrammarText
from gateway.turn_formats.pieces import TextPiece
from gateway.turn_formats.reading import Markers, Read
from gateway.turn_formats.shapes.block_format import BlockFormat
from gateway.turn_formats.turn_format import ToolSpec

JSON_BEGIN, JSON_END = "```json", "```"
_JSON_BEGINS, _JSON_ENDS = Markers(JSON_BEGIN), Markers(JSON_END)
_NAME = re.compile(r"[^<>\n`{]*")
_NUMBER = re.compile(r":\d+$")  # matches the number of a call, after the tool's name
_BEGIN_ARGUMENTS = ("{", '"')
_MAX_NAME = 256


class NamedCallFormat(BlockFormat):
    """The base of formats with named calls. A subclass gives its `marks`."""

    # markers: a section's beginning and end, a call's beginning and end, the end of a call's name
    marks: ClassVar[tuple[str, str, str, str, str]]
    between_calls = ""
    id_end: ClassVar[str] = ""  # text between a call's id and the tool's name; "": calls have no id
    around_text: ClassVar[tuple[str, ...]] = ()

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        return _NamedCallReader(tools, self.marks, self.id_end, self.around_text)

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        _, _, call, call_end, separator = self.marks
        head = f"{grammar.spelled(call)} {self.called(grammar, tool)} {grammar.spelled(separator)}"
        return f"{head} {grammar.arguments(tool)} {grammar.spelled(call_end)}"

    def called(self, grammar: GrammarText, tool: ToolSpec) -> str:
        """Write the grammar of the text that names `tool`."""
        return grammar.spelled(tool.name)


class _NamedCallReader(CallReader):
    def __init__(
        self,
        tools: Sequence[ToolSpec],
        marks: tuple[str, str, str, str, str],
        id_end: str,
        around_text: Sequence[str],
    ) -> None:
        super().__init__(tools)
        section, section_end, call, call_end, separator = marks
        self._section = section
        self._around_text = frozenset(around_text)
        self._begins = Markers(section, call, *around_text)
        self._has_id, self._id_ends = bool(id_end), Markers(id_end or separator)
        self._call_begins, self._call_ends = Markers(call), Markers(call_end)
        self._section_ends, self._separates = Markers(section_end), Markers(separator)
        self._ends = Markers(call_end, section_end, JSON_END)

    def turn(self) -> Read[None]:
        while found := (yield from self.until(self._begins, TextPiece)):
            if found in self._around_text:
                yield from self.spaces()
                self.drop()
                continue
            if found == self._section:
                yield from self.spaces()
                found = yield from self.literal(self._call_begins)
            if found:
                yield from self._calls()
            else:
                self.send(TextPiece)
        self.send(TextPiece)

    def _calls(self) -> Read[None]:
        while (yield from self._call()):
            if not (yield from self.next_block(self._call_begins, self._call_ends)):
                yield from self.closing(self._section_ends)
                yield from self.spaces()
                self.drop()
                return

    def _call(self) -> Read[bool]:
        name = yield from self.run(_NAME, _MAX_NAME)
        if self._has_id and (yield from self.literal(self._id_ends)):
            name = yield from self.run(_NAME, _MAX_NAME)
        if (yield from self.literal(self._separates)):
            yield from self.spaces()
            is_name = (yield from self.peek()) in _BEGIN_ARGUMENTS
            if not is_name and self._named(name) is None:  # `name` was the call's type
                name = yield from self.run(_NAME, _MAX_NAME)
            yield from self.spaces()
            yield from self.closing(_JSON_BEGINS)
            if (yield from self.call_of(self._named(name) or name.strip(), self._ends)):
                yield from self.spaces()
                yield from self.closing(_JSON_ENDS)
                return True
        self.send(TextPiece)
        return False

    def _named(self, written: str) -> str | None:
        name = written.strip()
        return self.known(name) or self.known(_NUMBER.sub("", name))
