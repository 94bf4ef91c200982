"""MiniMax-M3: the arguments of a call are elements, named by their tags.

    N<tool_call>
    N<invoke name="get_weather">N<city>OsloN</city>N<days>N<item>3N</item>N</days>N</invoke>
    N</tool_call>

Members of objects and items of lists are also elements. `N` stands for the token before each tag,
which occurs in no text. An argument that is a text is streamed. Any other argument is sent when it
is whole.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from gateway.turn_formats.calls import CallReader
from gateway.turn_formats.grammar import GrammarText
from gateway.turn_formats.pieces import CallArguments, TextPiece
from gateway.turn_formats.reading import Kind, Markers, Read
from gateway.turn_formats.shapes.block_format import BlockFormat
from gateway.turn_formats.shapes.schemas import alternatives, names, types_of, words_of
from gateway.turn_formats.shapes.strings import inner, string
from gateway.turn_formats.shapes.text_bounds import bounds_of
from gateway.turn_formats.shapes.values import typed
from gateway.turn_formats.turn_format import Schema, ToolSpec

_N = "]<]minimax[>["
_BLOCK, _BLOCK_END, _CALL = f"{_N}<tool_call>", f"{_N}</tool_call>", f'{_N}<invoke name="'
_ITEM = "item"
_NAME = re.compile(r"[^<>\"]*")
_MAX_NAME = 256
_MAX_DEPTH = 32
_SCALARS = ("boolean", "integer", "null", "number")


class MiniMaxM3Format(BlockFormat):
    """The `ToolFormat` of MiniMax-M3."""

    name: ClassVar[str] = "minimax_m3"
    markers: ClassVar[tuple[str, ...]] = (_N, "<tool_call>", "</tool_call>")
    call_marks: ClassVar[tuple[str, ...]] = (_BLOCK,)
    trigger = _BLOCK
    opens = "\n" + _CALL
    between_calls = "\n" + _CALL
    closes = "\n" + _BLOCK_END

    def is_in(self, template: str) -> bool:
        return _CALL in template

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        return _ElementReader(tools)

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        values = _Values(grammar, tool)
        members = values.members(tool.parameters or {"properties": {}}, _MAX_DEPTH)
        head = grammar.spelled(f'{tool.name}">')
        return f"{head} {members} {grammar.spelled(f'{_N}</invoke>')}"


class _Values:
    def __init__(self, grammar: GrammarText, tool: ToolSpec) -> None:
        self._grammar = grammar
        self._tool = tool

    def members(self, schema: Schema, depth: int) -> str:
        """Write an object's members in the schema's order, or any members without a schema."""
        ways = [self._members(one, depth) for one in alternatives(schema, self._tool.parameters)]
        return self._grammar.one_of("members", ways)

    def _members(self, schema: Schema, depth: int) -> str:
        properties = schema.get("properties")
        if depth <= 0 or not isinstance(properties, dict):
            begin, text = self._grammar.spelled(f"{_N}<"), self._grammar.up_to(f"{_N}</")
            member = f'{begin} /[^<>"\\s]{{1,64}}>/ {text} /[^<>]{{1,64}}>/'
            whole = self._grammar.json({"type": "object"}, strict=False)
            return self._grammar.rule("any", f"({member})* | {whole}")
        required = names(schema.get("required"))
        parts = (
            f"({self._element(name, one, depth)}){'' if name in required else '?'}"
            for name, one in properties.items()
        )
        return self._grammar.rule("object", " ".join(parts) or '""')

    def _element(self, name: str, schema: Schema, depth: int) -> str:
        key = f"{self._tool.name} {name} {json.dumps(schema, sort_keys=True)}"
        found = alternatives(schema, self._tool.parameters)
        return self._grammar.rule_once(
            "element",
            key,
            lambda: " | ".join(way for one in found for way in self._ways(name, one, depth)),
        )

    def _ways(self, name: str, schema: Schema, depth: int) -> Iterator[str]:
        spelled, tail = self._grammar.spelled, f"{_N}</{name}>"
        head = f"{_N}<{name}>"
        words = words_of(schema)
        if words is not None:
            for word in words:
                yield spelled(head + (word if isinstance(word, str) else json.dumps(word)) + tail)
            return
        types = types_of(schema)
        if not types or "string" in types:
            yield f"{spelled(head)} {self._grammar.up_to(tail, bounds_of(schema))}"
        if "object" in types:
            yield f"{spelled(head)} {self._members(schema, depth - 1)} {spelled(tail)}"
        if "array" in types:
            items = schema.get("items")
            known = items if depth > 0 and isinstance(items, dict) else {}
            item = self._element(_ITEM, known, depth - 1)
            yield f"{spelled(head)} ({item})* {spelled(tail)}"
        scalars = sorted(types.intersection(_SCALARS))
        if scalars:
            value = self._grammar.value(self._tool, {**schema, "type": scalars})
            yield f"{spelled(head)} {value} {spelled(tail)}"


class _ElementReader(CallReader):
    def turn(self) -> Read[None]:
        while (yield from self.until(_BEGINS, TextPiece)):
            while (yield from self._block()) and (yield from self.next_block(_BEGINS, _BLOCK_ENDS)):
                continue
        self.send(TextPiece)

    def _block(self) -> Read[bool]:
        """Read calls after the block's tag. If the text is no call, send it and return False."""
        yield from self.spaces()
        if not (yield from self.literal(_CALLS)):
            self.send(TextPiece)
            return False
        while (yield from self._call()):
            yield from self.spaces()
            if not (yield from self.literal(_CALLS)):
                return True
        return False

    def _call(self) -> Read[bool]:
        name = yield from self.run(_NAME, _MAX_NAME)
        if not (yield from self.literal(_NAMED)) or not self.started(name):
            self.send(TextPiece)
            return False
        yield from self._arguments(self.tools[self.known(name) or name])
        return True

    def _arguments(self, tool: ToolSpec) -> Read[None]:
        root = tool.parameters or {}
        before, is_whole = "{", True
        while is_whole and (name := (yield from self._opened())) is not None:
            self.drop()
            self.pieces.append(CallArguments(f"{before}{string(name)}: "))
            before = ", "
            is_whole = yield from self._argument(_member(root, name, root), root)
        closes = "{}" if before == "{" else "}"
        if (yield from self.closing(_CALL_ENDS)) or not (yield from self.peek()):
            self.drop()
            self.pieces += [] if self.is_cut else [CallArguments(closes)]
            return
        yield from self.broken_arguments(closes, _ENDS)
        yield from self.closing(_CALL_ENDS)
        self.drop()

    def _argument(self, schema: Schema, root: Schema) -> Read[bool]:
        """Read and send an argument's value; return False if it is cut off or nested too deeply."""
        if types_of(schema, root) != {"string"} or (yield from self._is_nested()):
            written = yield from self._value(schema, root, _MAX_DEPTH)
            if written is not None or not self.is_cut:
                self.pieces.append(CallArguments(written or "null"))
            return written is not None
        self.pieces.append(CallArguments('"'))
        yield from self._until_tag(_characters)
        if (yield from self._is_closed()):
            self.pieces.append(CallArguments('"'))
        return not self.is_cut

    def _value(self, schema: Schema, root: Schema, depth: int) -> Read[str | None]:
        """Read a value and its closing tag; return its JSON, or None if cut off or too deep."""
        types = types_of(schema, root)
        if (yield from self._is_nested()):
            members = yield from self._nested(schema, root, depth)
            if members is None or not (yield from self._is_closed()):
                return None
            is_list = "array" in types or ("object" not in types and {*members} == {_ITEM})
            return _array(members[_ITEM]) if is_list else _object(members)
        parts: list[str] = []
        yield from self._until_tag(lambda part: parts.append(part))
        if not (yield from self._is_closed()):
            return None
        text = "".join(parts)
        empty = {"array": "[]", "object": "{}"}
        found = None if text.strip() else next((empty[one] for one in types if one in empty), None)
        return found or typed(text, types)

    def _nested(
        self, schema: Schema, root: Schema, depth: int
    ) -> Read[defaultdict[str, list[str]] | None]:
        """Read the elements of a value; return their JSON by name, or None if one is cut off."""
        found = defaultdict[str, list[str]](list)
        while depth > 0:
            name = yield from self._opened()
            if name is None:
                return found
            written = yield from self._value(_member(schema, name, root), root, depth - 1)
            if written is None:
                return None
            found[name].append(written)
        return None

    def _opened(self) -> Read[str | None]:
        """Read an opening tag and return its name; return None and read nothing for another tag."""
        yield from self.spaces()
        found = yield from self.literal(_TAGS)
        if found != _OPEN:
            if found:
                self.unread(found)
            return None
        name = yield from self.run(_NAME, _MAX_NAME)
        return name if (yield from self.literal(_TAG_ENDS)) else None

    def _is_nested(self) -> Read[bool]:
        found = yield from self.literal(_TAGS)
        if found:
            self.unread(found)
        return found == _OPEN

    def _until_tag(self, kind: Kind) -> Read[None]:
        """Send a text up to the next tag, and leave the tag unread."""
        self.drop()
        found = yield from self.until(_TAGS, kind, strips=False)
        if found:
            self.unread(found)
        else:
            self.send(kind)

    def _is_closed(self) -> Read[bool]:
        """Read an element's closing tag, if one follows; return False if the turn was cut off."""
        yield from self.spaces()
        found = yield from self.literal(_TAGS)
        if found == _CLOSE:
            yield from self.run(_NAME, _MAX_NAME)
            yield from self.literal(_TAG_ENDS)
            self.drop()
        elif found:
            self.unread(found)
        return not self.is_cut


def _member(schema: Schema, name: str, root: Schema) -> Schema:
    for one in alternatives(schema, root):
        named = one.get("properties")
        found: Any = named.get(name) if isinstance(named, dict) else None
        found = one.get("items") if found is None and name == _ITEM else found
        if isinstance(found, dict):
            return found
    return {}


def _array(items: Sequence[str]) -> str:
    return f"[{', '.join(items)}]"


def _object(members: Mapping[str, Sequence[str]]) -> str:
    named = ((name, _array(all_) if all_[1:] else all_[0]) for name, all_ in members.items())
    return f"{{{', '.join(f'{string(name)}: {value}' for name, value in named)}}}"


def _characters(text: str) -> CallArguments:
    return CallArguments(inner(text))


_OPEN, _CLOSE = f"{_N}<", f"{_N}</"
_BEGINS, _BLOCK_ENDS = Markers(_BLOCK), Markers(_BLOCK_END)
_CALLS, _NAMED, _CALL_ENDS = Markers(_CALL), Markers('">'), Markers(f"{_N}</invoke>")
_ENDS = Markers(_BLOCK, _CALL, f"{_N}</invoke>", _BLOCK_END)
_TAGS = Markers(_OPEN, _CLOSE, _BLOCK, _CALL, f"{_N}</invoke>", _BLOCK_END)
_TAG_ENDS = Markers(">")
