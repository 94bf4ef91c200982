"""Qwen3-Coder, Qwen3.5: each argument as plain text between tags.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Oslo
    </parameter>
    </function>
    </tool_call>

Some models leave `<tool_call>` out. What is text by the tool's schema is sent as it comes, as
the characters of a JSON string; any other argument when it is whole, since its text alone does
not say whether it is a number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence, Set
from typing import ClassVar

from gateway.turn_formats.calls import BETWEEN, CallReader
from gateway.turn_formats.families.block_format import BlockFormat
from gateway.turn_formats.families.plain_values import plain_value
from gateway.turn_formats.families.schemas import ParameterTypes, properties_of, required_of
from gateway.turn_formats.families.strings import inner, string
from gateway.turn_formats.families.values import is_text, typed
from gateway.turn_formats.grammar import GrammarText
from gateway.turn_formats.pieces import CallArguments, Piece, TextPiece
from gateway.turn_formats.reading import Markers, Read
from gateway.turn_formats.turn_format import ToolSpec

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"

_BEGINS, _FUNCTIONS, _CALL_ENDS = Markers(_CALL, _FUNCTION), Markers(_FUNCTION), Markers(_CALL_END)
_FUNCTION_ENDS = Markers(_FUNCTION_END)
_WITHIN = Markers(_PARAMETER, _FUNCTION_END, _CALL_END)
_CLOSES_VALUE = (f"\n{_PARAMETER_END}", _PARAMETER_END)
_ENDS_CALL = (_FUNCTION_END, _CALL_END)
_UNCLOSED = (_PARAMETER, *_ENDS_CALL)
_VALUE_ENDS = Markers(*_CLOSES_VALUE, *_UNCLOSED, *(f"\n{tag}" for tag in _UNCLOSED))
_ENDS = Markers(*_ENDS_CALL)
_TAG_ENDS, _LINE = Markers(">"), Markers("\n")
_NAME = re.compile(r"[^<>\n]*")
_MAX_NAME = 1024
_Tag = tuple[str, str | None]  # the tag, and its parameter's name


class Qwen3CoderFormat(BlockFormat):
    """The `ToolFormat` of Qwen3-Coder and Qwen3.5."""

    name: ClassVar[str] = "qwen3_coder"
    markers: ClassVar[tuple[str, ...]] = (_CALL, _CALL_END)
    call_marks: ClassVar[tuple[str, ...]] = (_CALL, _FUNCTION)
    trigger = _CALL
    opens = f"\n{_FUNCTION}"
    closes = f"{_FUNCTION_END}\n{_CALL_END}"
    between_blocks = "\n"

    def is_in(self, template: str) -> bool:
        """Tell whether a chat template, or a turn that it shows, writes calls in this format."""
        return _CALL in template and _FUNCTION in template and _PARAMETER in template

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        """Make a parser of a turn that may call `tools`."""
        return _Qwen3CoderReader(tools)

    def opening_after_text(self, grammar: GrammarText) -> str:
        """Write the grammar of any text up to a block, with or without the outer marker."""
        outer = super().opening_after_text(grammar)
        return f"({outer} | {grammar.up_to(_FUNCTION)})"

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        """Write the grammar of one call within a block, from the tool's name on."""
        return f"{grammar.spelled(f'{tool.name}>')} {_line(grammar)} {_parameters(grammar, tool)}"


def _line(grammar: GrammarText) -> str:
    return grammar.spelled("\n")


def _parameters(grammar: GrammarText, tool: ToolSpec) -> str:
    """Write the grammar of a tool's parameters in schema order, or of any if none are named."""
    properties = properties_of(tool)
    if properties is None:
        value = grammar.up_to(f"\n{_PARAMETER_END}\n")
        one = f'{grammar.spelled(_PARAMETER)} /[^<>\\n]{{1,64}}/ ">\\n" {value}'
        return grammar.rule("parameters", f"({one})*")
    required = required_of(tool)
    ways = []
    for name, schema in properties.items():
        head = grammar.spelled(f"{_PARAMETER}{name}>\n")
        value = plain_value(grammar, tool, schema, f"\n{_PARAMETER_END}\n")
        ways.append(f"({head} {value}){'' if name in required else '?'}")
    return grammar.rule("parameters", " ".join(ways) or '""')


class _Qwen3CoderReader(CallReader):
    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        super().__init__(tools)
        self._parameters = {tool.name: ParameterTypes(tool) for tool in tools}

    def turn(self) -> Read[None]:
        while (yield from self.until(_BEGINS, TextPiece)):
            while (yield from self._block()) and (yield from self.next_block(_BEGINS, _CALL_ENDS)):
                continue
        self.send(TextPiece)

    def _block(self) -> Read[bool]:
        """Read calls after their marker; send text that is no call, and return False."""
        if self.held().endswith(_CALL):
            yield from self.spaces()
            if not (yield from self.literal(_FUNCTIONS)):
                self.send(TextPiece)
                return False
        while (yield from self._function()):
            yield from self.spaces()
            if not (yield from self.literal(_FUNCTIONS)):
                return True
        return False

    def _function(self) -> Read[bool]:
        name = yield from self.run(_NAME, _MAX_NAME)
        if not (yield from self.literal(_TAG_ENDS)) or not self.started(name.strip()):
            self.send(TextPiece)
            return False
        known = self.known(name.strip())
        assert known is not None
        yield from self._arguments(self._parameters[known])
        return True

    def _arguments(self, parameters: ParameterTypes) -> Read[None]:
        given: set[str] = set()
        tag, name = yield from self._tag()
        while tag == _PARAMETER and name is not None:
            tag, name = yield from self._parameter(parameters, name, given)
        closes = "}" if given else "{}"
        if tag in _ENDS_CALL or not (yield from self.peek()):
            self.drop()
            self.pieces += [] if self.is_cut else [CallArguments(closes)]
        else:
            yield from self.broken_arguments(closes, _ENDS)
        yield from self.closing(_FUNCTION_ENDS)
        self.drop()

    def _tag(self) -> Read[_Tag]:
        """Read the tag after a parameter; leave a tag that ends the call unread."""
        yield from self.spaces()
        tag = yield from self.closing(_WITHIN)
        if tag == _PARAMETER:
            return tag, (yield from self._name())
        if tag:
            self.unread(tag)
        return tag, None

    def _name(self) -> Read[str | None]:
        """Read a parameter's name and the end of its tag."""
        name = yield from self.run(_NAME, _MAX_NAME)
        return name.strip() if (yield from self.literal(_TAG_ENDS)) else None

    def _parameter(self, parameters: ParameterTypes, name: str, given: set[str]) -> Read[_Tag]:
        """Send a parameter's value, and read the tag after it."""
        self.pieces.append(CallArguments(f"{', ' if given else '{'}{string(name)}: "))
        given.add(name)
        yield from self.literal(_LINE)
        self.drop()
        value = _Value(parameters.types(name))
        self.pieces += value.begin()
        while True:
            found = yield from self.until(_VALUE_ENDS, value.add, strips=False)
            if found in _CLOSES_VALUE:
                self.drop()
                self.pieces += value.end()
                return (yield from self._tag())
            if not found:
                self.send(value.add)
                self.pieces += [] if self.is_cut else value.end(strips=True)
                return "", None
            end = found.removeprefix("\n")
            tag, name_after = yield from self._tag_after(end, parameters, given)
            if tag:
                self.pieces += value.end()
                return tag, name_after
            self.send(value.add)

    def _tag_after(
        self, found: str, parameters: ParameterTypes, given: Collection[str]
    ) -> Read[_Tag]:
        """Read the tag after an unclosed value; return "" if the tag is part of the value.

        So it is a parameter that was not given yet, or the end of all, after which nothing but
        another call follows.
        """
        if found == _PARAMETER:
            name = yield from self._name()
            is_next = name in parameters and name not in given
            return (found, name) if is_next else ("", None)
        if found == _FUNCTION_END:
            yield from self.spaces()
            yield from self.literal(_CALL_ENDS)
        yield from self.run(BETWEEN)
        another = yield from self.literal(_BEGINS)
        if another:
            self.unread(another)
        is_end = another or not (yield from self.peek())
        return (found if is_end and not self.is_cut else ""), None


class _Value:
    """A streamed argument value: text is sent at once, any other type when it is whole."""

    def __init__(self, types: Set[str]) -> None:
        self._types = types
        self._is_text = is_text(types)
        self._parts: list[str] = []  # unsent text; of a string, only a last newline

    def begin(self) -> list[Piece]:
        """Return the opening quote of a string; nothing for other types."""
        return [CallArguments('"')] if self._is_text else []

    def add(self, text: str) -> Piece | None:
        """Add text of the value; return the piece to send now, if any."""
        self._parts.append(text)
        if not self._is_text:
            return None
        written = "".join(self._parts)
        solid = written.removesuffix("\n")
        self._parts = [written[len(solid) :]]
        return CallArguments(inner(solid)) if solid else None

    def end(self, *, strips: bool = False) -> list[Piece]:
        """End the value; `strips` drops a newline at its end."""
        rest = "".join(self._parts)
        rest = rest.removesuffix("\n") if strips else rest
        if self._is_text:
            return [CallArguments(f'{inner(rest)}"')]
        return [CallArguments(typed(rest, self._types))]
