"""FunctionGemma and Gemma 4: a call in a notation of their own, between special tokens.

    <start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:3}<end_function_call>
    <|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>

Keys are bare, strings stand between quotes that are a token, so that nothing in them needs an
escape; the rest is as in JSON, and is passed on as JSON while it comes. Gemma 3 itself has no
form of calls: what its prompts show it is `pythonic`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gateway.turn_formats.calls import CallReader
from gateway.turn_formats.families.block_format import BlockFormat
from gateway.turn_formats.families.values import inner, string, typed, types_of
from gateway.turn_formats.grammar import GrammarText, in_order, repeated
from gateway.turn_formats.pieces import CallArguments, TextPiece
from gateway.turn_formats.reading import Markers, Read
from gateway.turn_formats.turn_format import Schema, ToolSpec

_SCALARS: Schema = {"type": ["number", "boolean", "null"]}
_NAME = re.compile(r"[^{<\s]*")
_KEY = re.compile(r"[^:<{}\[\],]*")
_SCALAR = re.compile(r"[^<{}\[\],]*")
_MAX_NAME = 256
_MAX_SCALAR = 1024
_MAX_DEPTH = 64
_PREFIX = "call:"


class FunctionGemmaFormat(BlockFormat):
    """A `ToolFormat`."""

    name: ClassVar[str] = "functiongemma"
    markers: ClassVar[tuple[str, ...]] = (
        "<start_function_call>",
        "<end_function_call>",
        "<escape>",
    )
    trigger = markers[0]
    opens = _PREFIX
    closes = markers[1]

    def is_in(self, template: str) -> bool:
        """Whether a chat template's source writes calls this way."""
        return self.trigger in template

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        """Reads a turn in which these tools may be called."""
        return _GemmaReader(tools, *self.markers)

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        """One call within a block."""
        schema = tool.parameters or {"properties": {}}
        written = _Values(grammar, tool, self.markers[2])
        return f"{grammar.spelled(tool.name)} {written.object(schema, _MAX_DEPTH)}"


class Gemma4Format(FunctionGemmaFormat):
    """A `ToolFormat`: the same with other tokens."""

    name: ClassVar[str] = "gemma4"
    markers: ClassVar[tuple[str, ...]] = ("<|tool_call>", "<tool_call|>", '<|"|>')
    trigger = markers[0]
    closes = markers[1]


class _Values:
    """Writes the grammars of values that follow a schema."""

    def __init__(self, grammar: GrammarText, tool: ToolSpec, quote: str) -> None:
        self._grammar = grammar
        self._root: Mapping[str, Any] = tool.parameters or {}
        self._strict = tool.strict
        self._quote = quote

    def object(self, schema: Schema, depth: int) -> str:
        """Members in the order in which templates write them: by name."""
        if "properties" not in schema:
            return self._any_object()
        required = schema.get("required", ())
        parts = [
            (f"{self._grammar.spelled(f'{name}:')} {self._value(one, depth - 1)}", name in required)
            for name, one in sorted(schema["properties"].items())
        ]
        return f'"{{" {in_order(parts, _COMMA, self._grammar)} "}}"'

    def _value(self, schema: Schema, depth: int) -> str:
        words = schema.get("enum")
        if words and all(isinstance(word, str) for word in words):
            ways = [self._grammar.spelled(f"{self._quote}{word}{self._quote}") for word in words]
            return self._grammar.one_of("word", ways)
        types = types_of(schema, self._root)
        if types == {"string"}:
            return self._text()
        if types == {"object"} and depth > 0:
            return self.object(schema, depth)
        if types == {"array"} and depth > 0 and isinstance(schema.get("items"), dict):
            return self._list(self._value(schema["items"], depth - 1))
        if types and not types & {"string", "object", "array"} and "type" in schema:
            return self._grammar.json(schema, strict=self._strict)
        return self._any()

    def _text(self) -> str:
        quote = self._grammar.spelled(self._quote)
        return self._grammar.rule("text", f"{quote} {self._grammar.up_to(self._quote)}")

    def _list(self, item: str) -> str:
        item = self._grammar.rule("item", item)
        return self._grammar.rule("list", f'"[" ({repeated(item, _COMMA, 1, None)})? "]"')

    def _any_object(self) -> str:
        member = self._grammar.rule("member", f'/[^:<{{}}\\[\\],\\s]{{1,64}}/ ":" {self._any()}')
        return f'"{{" ({repeated(member, _COMMA, 1, None)})? "}}"'

    def _any(self) -> str:
        scalar = self._grammar.json(_SCALARS, strict=False)
        flat = self._grammar.one_of("flat", [self._text(), scalar])
        return self._grammar.one_of("any", [flat, self._list(flat)])


_COMMA = '","'


class _GemmaReader(CallReader):
    def __init__(self, tools: Sequence[ToolSpec], opens: str, closes: str, quote: str) -> None:
        super().__init__(tools)
        self._opens, self._closes, self._quote = Markers(opens), Markers(closes), Markers(quote)
        self._ends = Markers(opens, closes)

    def turn(self) -> Read[None]:
        while (yield from self.until(self._opens, TextPiece)):
            yield from self.spaces()
            yield from self.literal(_CALL)
            yield from self.spaces()
            name = yield from self.run(_NAME, _MAX_NAME)
            yield from self.spaces()
            if (yield from self.peek()) == "{" and self.started(name):
                yield from self._arguments()
            else:
                self.send(TextPiece)
        self.send(TextPiece)

    def _arguments(self) -> Read[None]:
        if not (yield from self._object(0)):
            yield from self.broken_arguments(self._ends)
        yield from self.spaces()
        yield from self.closing(self._closes)
        yield from self.spaces()
        self.drop()

    def _object(self, depth: int) -> Read[bool]:
        """Sends an object; False where it is cut off or none."""
        before = "{"
        yield from self.literal(_OBJECT)
        while True:
            yield from self.spaces()
            if (yield from self.literal(_OBJECT_ENDS)):
                return self._ended("{}" if before == "{" else "}")
            key = yield from self._key()
            if key is None or not (yield from self.literal(_COLON)):
                return False
            self.drop()
            self.pieces.append(CallArguments(f"{before}{string(key)}: "))
            if not (yield from self._value(depth + 1)):
                return False
            yield from self.spaces()
            yield from self.literal(_COMMAS)
            before = ", "

    def _ended(self, written: str) -> bool:
        self.drop()
        self.pieces.append(CallArguments(written))
        return True

    def _key(self) -> Read[str | None]:
        if not (yield from self.literal(self._quote)):
            return (yield from self.run(_KEY, _MAX_NAME)).strip() or None
        key = yield from self.run(_KEY, _MAX_NAME)
        return key if (yield from self.literal(self._quote)) else None

    def _value(self, depth: int) -> Read[bool]:
        yield from self.spaces()
        follows = yield from self.peek()
        if follows in ("{", "["):
            if depth > _MAX_DEPTH:
                return False
            return (yield from self._object(depth) if follows == "{" else self._list(depth))
        if (yield from self.literal(self._quote)):
            return (yield from self._words())
        written = yield from self.run(_SCALAR, _MAX_SCALAR)
        if not written.strip() or not (yield from self.peek()):
            return False
        return self._ended(typed(written, _SCALARS))

    def _list(self, depth: int) -> Read[bool]:
        before = "["
        yield from self.literal(_LIST)
        while True:
            yield from self.spaces()
            if (yield from self.literal(_LIST_ENDS)):
                return self._ended("[]" if before == "[" else "]")
            self.drop()
            self.pieces.append(CallArguments(before))
            if not (yield from self._value(depth + 1)):
                return False
            yield from self.spaces()
            yield from self.literal(_COMMAS)
            before = ", "

    def _words(self) -> Read[bool]:
        self._ended('"')
        found = yield from self.until(self._quote, _characters, strips=False)
        if not found:
            self.send(_characters)
            return False
        return self._ended('"')


_CALL = Markers(_PREFIX)
_OBJECT, _OBJECT_ENDS, _LIST, _LIST_ENDS = (Markers(char) for char in "{}[]")
_COLON, _COMMAS = Markers(":"), Markers(",")


def _characters(text: str) -> CallArguments:
    return CallArguments(inner(text))
