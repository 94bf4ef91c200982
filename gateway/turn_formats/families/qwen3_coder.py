"""Qwen3-Coder, Qwen3.5: each argument between marks of its own, as plain text.

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
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gateway.turn_formats.calls import CallReader
from gateway.turn_formats.families.block_format import BlockFormat
from gateway.turn_formats.families.values import inner, is_text, parameter, string, typed, types_of
from gateway.turn_formats.grammar import GrammarText
from gateway.turn_formats.pieces import CallArguments, TextPiece
from gateway.turn_formats.reading import Kind, Markers, Read
from gateway.turn_formats.turn_format import Schema, ToolSpec

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"

_BEGINS, _FUNCTIONS, _CALL_ENDS = Markers(_CALL, _FUNCTION), Markers(_FUNCTION), Markers(_CALL_END)
_FUNCTION_ENDS = Markers(_FUNCTION_END)
_WITHIN = Markers(_PARAMETER, _FUNCTION_END, _CALL_END)
_VALUE_ENDS = Markers(f"\n{_PARAMETER_END}", _PARAMETER_END)
_ENDS = Markers(_FUNCTION_END, _CALL_END)
_TAG_ENDS, _LINE = Markers(">"), Markers("\n")
_NAME = re.compile(r"[^<>\n]*")
_MAX_NAME = 1024


class Qwen3CoderFormat(BlockFormat):
    """A `ToolFormat`."""

    name: ClassVar[str] = "qwen3_coder"
    markers: ClassVar[tuple[str, ...]] = (_CALL, _CALL_END)
    trigger = _CALL
    opens = f"\n{_FUNCTION}"
    closes = f"{_FUNCTION_END}\n{_CALL_END}"
    between_blocks = "\n"

    def is_in(self, template: str) -> bool:
        """Whether a chat template's source writes calls this way."""
        return _CALL in template and _FUNCTION in template and _PARAMETER in template

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        """Reads a turn in which these tools may be called."""
        return _Qwen3CoderReader(tools)

    def opening_after_text(self, grammar: GrammarText) -> str:
        """Any text up to a block, also to one without the outer marker."""
        outer = super().opening_after_text(grammar)
        return f"({outer} | {grammar.up_to(_FUNCTION)})"

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        """One call within a block, from the tool's name on."""
        return f"{grammar.spelled(f'{tool.name}>')} {_line(grammar)} {_parameters(grammar, tool)}"


def _line(grammar: GrammarText) -> str:
    return grammar.spelled("\n")


def _parameters(grammar: GrammarText, tool: ToolSpec) -> str:
    """The parameters in the order of the schema; any, where it names none and allows others."""
    schema: Mapping[str, Any] = tool.parameters or {"properties": {}}
    required = schema.get("required", ())
    ways = []
    for name in schema.get("properties", ()):
        head, tail = f"{_PARAMETER}{name}>\n", f"\n{_PARAMETER_END}\n"
        value = _value(grammar, tool, name, tail)
        ways.append(f"({grammar.spelled(head)} {value}){'' if name in required else '?'}")
    if "properties" not in schema:
        value = grammar.up_to(f"\n{_PARAMETER_END}\n")
        ways.append(f'({grammar.spelled(_PARAMETER)} /[^<>\\n]{{1,64}}/ ">\\n" {value})*')
    return grammar.rule("parameters", " ".join(ways) or '""')


def _value(grammar: GrammarText, tool: ToolSpec, name: str, tail: str) -> str:
    """A value and what ends it."""
    root: Mapping[str, Any] = tool.parameters or {}
    schema = parameter(tool, name) or {}
    words = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if words and all(isinstance(word, str) for word in words):
        ways = " | ".join(grammar.spelled(word) for word in words)
        return f"({ways}) {grammar.spelled(tail)}"
    types = types_of(schema, root)
    if not types or "string" in types:
        return grammar.up_to(tail)
    return f"{grammar.parameter(tool, name)} {grammar.spelled(tail)}"


class _Qwen3CoderReader(CallReader):
    def turn(self) -> Read[None]:
        while found := (yield from self.until(_BEGINS, TextPiece)):
            if found == _CALL:
                yield from self.spaces()
                found = yield from self.literal(_FUNCTIONS)
            if found:
                yield from self._functions()
            else:
                self.send(TextPiece)
        self.send(TextPiece)

    def _functions(self) -> Read[None]:
        """What follows the marker of the first call of a block."""
        while (yield from self._function()):
            yield from self.spaces()
            if not (yield from self.literal(_FUNCTIONS)):
                yield from self.closing(_CALL_ENDS)
                yield from self.spaces()
                self.drop()
                return

    def _function(self) -> Read[bool]:
        name = yield from self.run(_NAME, _MAX_NAME)
        if not (yield from self.literal(_TAG_ENDS)) or not self.started(name.strip()):
            self.send(TextPiece)
            return False
        if (yield from self._parameters(self.tools[name.strip()])):
            yield from self.closing(_FUNCTION_ENDS)
        else:
            yield from self.broken_arguments(_ENDS)
            yield from self.closing(_FUNCTION_ENDS)
        return True

    def _parameters(self, tool: ToolSpec) -> Read[bool]:
        """Sends the arguments; False where they are cut off or not written so."""
        before = "{"
        while True:
            yield from self.spaces()
            tag = yield from self.closing(_WITHIN)
            if tag != _PARAMETER:
                return (yield from self._ended(tag, before))
            name = yield from self.run(_NAME, _MAX_NAME)
            if not (yield from self.literal(_TAG_ENDS)):
                return False
            self.drop()
            self.pieces.append(CallArguments(f"{before}{string(name.strip())}: "))
            if not (yield from self._value(parameter(tool, name.strip()), tool.parameters)):
                return False
            before = ", "

    def _ended(self, tag: str, before: str) -> Read[bool]:
        """No argument follows: the call ends here, is cut off, or broken."""
        if not tag:
            if not (yield from self.peek()):
                self.drop()
            return False
        self.unread(tag)
        self.drop()
        self.pieces.append(CallArguments("{}" if before == "{" else "}"))
        return True

    def _value(self, schema: Schema | None, root: Schema | None) -> Read[bool]:
        yield from self.literal(_LINE)
        self.drop()
        if is_text(schema, root):
            return (yield from self._words())
        parts: list[str] = []
        found = yield from self._value_until_end(parts.append)
        written = "".join(parts)
        if found or written:
            self.pieces.append(CallArguments(typed(written, schema, root) if found else written))
        return found

    def _words(self) -> Read[bool]:
        self.pieces.append(CallArguments('"'))
        found = yield from self._value_until_end(_characters)
        self.pieces += [CallArguments('"')] if found else []
        return found

    def _value_until_end(self, kind: Kind) -> Read[bool]:
        found = yield from self.until(_VALUE_ENDS, kind, strips=False)
        if found:
            self.drop()
        self.send(kind)
        return bool(found)


def _characters(text: str) -> CallArguments:
    return CallArguments(inner(text))
