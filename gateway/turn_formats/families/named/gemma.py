"""FunctionGemma and Gemma 4: a call in Gemma's own notation, between special tokens.

    <start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:3}<end_function_call>
    <|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>

Keys have no quotes. Each string stands between two quote tokens. No string contains these tokens,
so strings need no escapes. Everything else is as in JSON. JSON strings are read too. Calls are sent
as JSON while they arrive. Gemma 3 has no notation for calls. Its prompts ask for the form of
`pythonic.py`.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import msgspec

from gateway.turn_formats.calls import CallReader
from gateway.turn_formats.grammar import GrammarText, in_order, repeated
from gateway.turn_formats.pieces import CallArguments, TextPiece
from gateway.turn_formats.reading import Markers, Read
from gateway.turn_formats.shapes.block_format import BlockFormat
from gateway.turn_formats.shapes.schemas import (
    ParameterTypes,
    alternatives,
    names,
    resolved,
    types_of,
    words_of,
)
from gateway.turn_formats.shapes.strings import inner, string
from gateway.turn_formats.shapes.text_bounds import bounds_of
from gateway.turn_formats.shapes.values import typed
from gateway.turn_formats.turn_format import Schema, ToolSpec

_SCALARS = ("number", "boolean", "null")
_NAME = re.compile(r"[^{<\s]*")
_KEY = re.compile(r"[^:<{}\[\],]*")
_SCALAR = re.compile(r"[^<{}\[\],]*")
_MAX_NAME = 256
_MAX_SCALAR, _MAX_TEXT = 1024, 1 << 16
_JSON_QUOTE = '"'
_MAX_DEPTH = 64
_PREFIX = "call:"


class FunctionGemmaFormat(BlockFormat):
    """The `ToolFormat` of FunctionGemma."""

    name: ClassVar[str] = "functiongemma"
    markers: ClassVar[tuple[str, ...]] = (
        "<start_function_call>",
        "<end_function_call>",
        "<escape>",
    )
    call_marks: ClassVar[tuple[str, ...]] = (markers[0],)
    trigger = markers[0]
    opens = _PREFIX
    closes = markers[1]

    def is_in(self, template: str) -> bool:
        return self.trigger in template

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        return _GemmaReader(tools, *self.markers)

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        schema = tool.parameters or {"properties": {}}
        written = _Values(grammar, tool, self.markers[2])
        return f"{grammar.spelled(tool.name)} {written.object(schema, _MAX_DEPTH)}"


class Gemma4Format(FunctionGemmaFormat):
    """The `ToolFormat` of Gemma 4, which differs from FunctionGemma's in its tokens."""

    name: ClassVar[str] = "gemma4"
    markers: ClassVar[tuple[str, ...]] = ("<|tool_call>", "<tool_call|>", '<|"|>')
    call_marks: ClassVar[tuple[str, ...]] = (markers[0],)
    trigger = markers[0]
    closes = markers[1]


class _Values:
    def __init__(self, grammar: GrammarText, tool: ToolSpec, quote: str) -> None:
        self._grammar = grammar
        self._tool = tool
        self._quote = quote

    def object(self, schema: Schema, depth: int) -> str:
        """Write the grammar of an object with members sorted by name, as templates sort them."""
        whole = resolved(schema, self._tool.parameters)
        if depth <= 0 or not isinstance(whole.get("properties"), dict):
            return self._any_object()
        key = f"{self._tool.name} {json.dumps(whole, sort_keys=True)}"
        return self._grammar.rule_once("object", key, lambda: self._members(whole, depth))

    def _members(self, whole: Schema, depth: int) -> str:
        properties = whole["properties"]
        required = names(whole.get("required"))
        parts = [
            (f"{self._grammar.spelled(f'{name}:')} {self._value(one, depth - 1)}", name in required)
            for name, one in sorted(properties.items())
        ]
        return f'"{{" {in_order(parts, _COMMA, self._grammar)} "}}"'

    def _value(self, schema: Schema, depth: int) -> str:
        found = alternatives(schema, self._tool.parameters)
        ways = [way for one in found for way in self._ways(one, depth)]
        return self._grammar.one_of("value", ways)

    def _ways(self, schema: Schema, depth: int) -> Iterator[str]:
        words = words_of(schema)
        if words is not None:
            yield from (self._word(word) for word in words)
            return
        types = types_of(schema)
        if "string" in types:
            yield self._text(bounds_of(schema))
        if "object" in types:
            yield self.object(schema, depth)
        if "array" in types:
            items = schema.get("items")
            known = items if depth > 0 and isinstance(items, dict) else None
            yield self._list(self._any() if known is None else self._value(known, depth - 1))
        scalars = sorted(types - {"string", "object", "array"})
        if scalars:
            yield self._grammar.value(self._tool, {**schema, "type": scalars})
        if not types:
            yield self._any()

    def _word(self, word: Any) -> str:
        text = f"{self._quote}{word}{self._quote}" if isinstance(word, str) else json.dumps(word)
        return self._grammar.spelled(text)

    def _text(self, bounds: Sequence[str] = ()) -> str:
        quote = self._grammar.spelled(self._quote)
        return self._grammar.rule("text", f"{quote} {self._grammar.up_to(self._quote, bounds)}")

    def _list(self, item: str) -> str:
        item = self._grammar.rule("item", item)
        return self._grammar.rule("list", f'"[" ({repeated(item, _COMMA, 1, None)})? "]"')

    def _any_object(self) -> str:
        member = self._grammar.rule("member", f'/[^:<{{}}\\[\\],\\s]{{1,64}}/ ":" {self._any()}')
        return f'"{{" ({repeated(member, _COMMA, 1, None)})? "}}"'

    def _any(self) -> str:
        scalar = self._grammar.json({"type": _SCALARS}, strict=False)
        flat = self._grammar.one_of("flat", [self._text(), scalar])
        return self._grammar.one_of("any", [flat, self._list(flat)])


_COMMA = '","'


class _GemmaReader(CallReader):
    def __init__(self, tools: Sequence[ToolSpec], opens: str, closes: str, quote: str) -> None:
        super().__init__(tools)
        self._opens, self._closes, self._quote = Markers(opens), Markers(closes), Markers(quote)
        self._ends = Markers(opens, closes)
        self._parameters = {tool.name: ParameterTypes(tool) for tool in tools}

    def turn(self) -> Read[None]:
        while (yield from self.until(self._opens, TextPiece)):
            while (yield from self._call()) and (
                yield from self.next_block(self._opens, self._closes)
            ):
                continue
        self.send(TextPiece)

    def _call(self) -> Read[bool]:
        """Read a call after its marker. If the text is no call, send it and return False."""
        yield from self.spaces()
        yield from self.literal(_CALL)
        yield from self.spaces()
        name = yield from self.run(_NAME, _MAX_NAME)
        yield from self.spaces()
        if (yield from self.peek()) == "{" and self.started(name):
            if not (yield from self._object(0, self._parameters.get(self.known(name) or ""))):
                yield from self.broken_arguments("", self._ends)
            return True
        is_call = yield from self.call_of(name, self._ends)
        if not is_call:
            self.send(TextPiece)
        return is_call

    def _object(self, depth: int, parameters: ParameterTypes | None = None) -> Read[bool]:
        """Read and send an object, perhaps of a tool's parameters.

        If it is malformed or cut off, close it and return False.
        """
        before = "{"
        yield from self.literal(_OBJECT)
        self.drop()
        while True:
            yield from self.spaces()
            if (yield from self.literal(_OBJECT_ENDS)):
                return self._ended("{}" if before == "{" else "}")
            key = yield from self._key()
            if key is None or not (yield from self.literal(_COLON)):
                return self._broken("{}" if before == "{" else "}")
            self.drop()
            self.pieces.append(CallArguments(f"{before}{string(key)}: "))
            types = frozenset[str]() if parameters is None else parameters.types(key)
            if not (yield from self._value(depth + 1, types)):
                return self._broken("}")
            yield from self.spaces()
            yield from self.literal(_COMMAS)
            before = ", "

    def _ended(self, written: str) -> bool:
        self.drop()
        self.pieces.append(CallArguments(written))
        return True

    def _broken(self, written: str) -> bool:
        if not self.is_cut:
            self.pieces.append(CallArguments(written))
        return False

    def _key(self) -> Read[str | None]:
        if (yield from self.peek()) == _JSON_QUOTE:
            written = yield from self.json_value(_MAX_NAME)
            yield from self.spaces()
            return msgspec.json.decode(written, type=str) if written else None
        if not (yield from self.literal(self._quote)):
            return (yield from self.run(_KEY, _MAX_NAME)).strip() or None
        key = yield from self.run(_KEY, _MAX_NAME)
        return key if (yield from self.literal(self._quote)) else None

    def _value(self, depth: int, types: frozenset[str] = frozenset()) -> Read[bool]:
        yield from self.spaces()
        follows = yield from self.peek()
        if follows in ("{", "["):
            if depth > _MAX_DEPTH:
                return self._broken("null")
            return (yield from self._object(depth) if follows == "{" else self._list(depth))
        if follows == _JSON_QUOTE:
            written = yield from self.json_value(_MAX_TEXT)
            return self._ended(written) if written else self._broken("null")
        if (yield from self.closing(self._quote)):
            return (yield from self._words(types))
        written = yield from self.run(_SCALAR, _MAX_SCALAR)
        if self.is_cut and not (yield from self.peek()):
            return False
        if not written.strip():
            return self._broken("null")
        return self._ended(typed(written, frozenset(_SCALARS)))

    def _list(self, depth: int) -> Read[bool]:
        before = "["
        yield from self.literal(_LIST)
        while True:
            yield from self.spaces()
            if (yield from self.literal(_LIST_ENDS)):
                return self._ended("[]" if before == "[" else "]")
            if not (yield from self.peek()):
                return self._broken("[]" if before == "[" else "]")
            self.drop()
            self.pieces.append(CallArguments(before))
            if not (yield from self._value(depth + 1)):
                return self._broken("]")
            yield from self.spaces()
            yield from self.literal(_COMMAS)
            before = ", "

    def _words(self, types: frozenset[str]) -> Read[bool]:
        """Read a text between quotes. FunctionGemma writes values of other types there too."""
        if types and "string" not in types:
            parts: list[str] = []
            self.drop()
            found = yield from self.until(self._quote, parts.append, strips=False)
            is_whole = bool(found) or not self.is_cut
            return self._ended(typed("".join(parts), types)) if is_whole else False
        self._ended('"')
        found = yield from self.until(self._quote, _characters, strips=False)
        if not found:
            self.send(_characters)
            return self._broken('"')
        return self._ended('"')


_CALL = Markers(_PREFIX, ":")  # some models leave out the word `call`
_OBJECT, _OBJECT_ENDS, _LIST, _LIST_ENDS = (Markers(char) for char in "{}[]")
_COLON, _COMMAS = Markers(":"), Markers(",")


def _characters(text: str) -> CallArguments:
    return CallArguments(inner(text))
