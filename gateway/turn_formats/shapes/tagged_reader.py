"""The reader of calls whose arguments are plain text between tags.

If the tool's schema allows only texts, an argument is streamed as characters of a JSON string. Any
other argument is sent when it is whole, since only its whole text shows its type. A closing tag
within a value, as in a file about such tags, is part of the value if text follows the tag, and then
another closing tag.

Some models write JSON between the tags: a call object, an object of all arguments, or such an
object as a parameter of its own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence, Set

from gateway.turn_formats.calls import BETWEEN, CallReader
from gateway.turn_formats.pieces import CallArguments, TextPiece
from gateway.turn_formats.reading import Markers, Read
from gateway.turn_formats.shapes.plain_values import OTHERS
from gateway.turn_formats.shapes.schemas import ParameterTypes
from gateway.turn_formats.shapes.streamed_value import StreamedValue
from gateway.turn_formats.shapes.strings import string
from gateway.turn_formats.shapes.tags import Tags
from gateway.turn_formats.turn_format import ToolSpec

_LINE = Markers("\n")
_MAX_NAME = 1024
_NUMBER = re.compile(r"[0-9]{0,9}")
_Tag = tuple[str, str | None]
_WRAPPERS = ("arguments", "parameters", "input")  # names of parameters with all arguments


class _Marks:
    def __init__(self, tags: Tags) -> None:
        self.begins, self.calls, self.ends = Markers(*tags.begins), Markers(tags.call), tags.ends
        self.call_ends = Markers(tags.call_end)
        self.block_ends = Markers(tags.block_end) if tags.block else None
        self.any_end = Markers(*tags.ends)
        self.within = Markers(tags.key, *tags.ends)
        self.value_end = Markers(tags.value_end)
        self.closes_value = tuple(dict.fromkeys((tags.pad + tags.value_end, tags.value_end)))
        unclosed = (tags.key, *tags.ends)
        self.value_ends = Markers(
            *self.closes_value, *unclosed, *(f"\n{tag}" for tag in unclosed if tag[0] != "\n")
        )
        self.quote = tuple(map(Markers, tags.quote or ()))
        self.named = Markers(tags.named) if tags.named else None
        self.numbered = Markers(tags.numbered or tags.key)
        self.keyed = tuple(map(Markers, tags.keyed))
        self.types = Markers(*(tag for _, tag in tags.typed)) if tags.typed else None
        self.kinds = {tag: kind for kind, tag in tags.typed}
        self.name = _name_before(tags.named)
        self.parameter = _name_before(tags.keyed[0])


def _name_before(tag: str) -> re.Pattern[str]:
    return re.compile(rf"[^<>\n{re.escape(tag[:1])}]*")


class TaggedReader(CallReader):
    """A parser of calls with `tags`. Markers in `around_text` are dropped."""

    def __init__(self, tools: Sequence[ToolSpec], tags: Tags, around_text: Sequence[str]) -> None:
        super().__init__(tools)
        self._around_text = frozenset(around_text)
        self._either = Markers(*tags.begins, *around_text)
        self._after_value = Markers(tags.key, *tags.ends, *tags.begins, *around_text)
        self._parameters = {tool.name: ParameterTypes(tool) for tool in tools}
        self._tags, self._marks = tags, _Marks(tags)
        self._kind = ""  # type of the next value, as its tag gives it

    def turn(self) -> Read[None]:
        marks = self._marks
        while found := (yield from self.until(self._either, TextPiece)):
            if found in self._around_text:
                yield from self.spaces()
                self.drop()
                continue
            while (yield from self._block()) and (
                yield from self.next_block(marks.begins, marks.block_ends)
            ):
                continue
        self.send(TextPiece)

    def _block(self) -> Read[bool]:
        """Read calls after their tag. If the text is no call, send it and return False."""
        if self._tags.block and self.held().endswith(self._tags.block):
            yield from self.spaces()
            if (yield from self.peek()) in ("{", "["):
                return (yield from self.call_objects(self._marks.any_end))
            if not (yield from self.literal(self._marks.calls)):
                self.send(TextPiece)
                return False
        while (yield from self._call()):
            yield from self.spaces()
            if not (yield from self.literal(self._marks.calls)):
                return True
        return False

    def _call(self) -> Read[bool]:
        if (yield from self.peek()) == "{":
            is_call = yield from self.call_object(self._marks.any_end)
            yield from self._ended(self._marks.call_ends)
            return is_call
        name = yield from self.run(self._marks.name, _MAX_NAME)
        if not (yield from self._is_named()) or not self.started(name.strip()):
            self.send(TextPiece)
            return False
        known = self.known(name.strip())
        assert known is not None
        yield from self._arguments(self._parameters[known])
        return True

    def _is_named(self) -> Read[bool]:
        """Read the text after a tool's name up to the arguments; return False if it is no call."""
        if self._tags.numbered and (yield from self.literal(self._marks.numbered)):
            yield from self.run(_NUMBER)
        if self._marks.named is not None:
            return bool((yield from self.literal(self._marks.named)))
        yield from self.spaces()
        tag = yield from self.literal(self._marks.within)
        if tag:
            self.unread(tag)
        follows = yield from self.peek()
        return bool(tag) or follows == "{" or not (follows or self.is_cut)

    def _arguments(self, parameters: ParameterTypes) -> Read[None]:
        given: set[str] = set()
        tag, name = yield from self._tag()
        is_wrapper = name in _WRAPPERS and name not in parameters
        if (is_wrapper or not tag) and (yield from self._are_object()):
            yield from self._ended(self._marks.value_end)
            yield from self._ended(self._marks.call_ends)
            return
        while tag == self._tags.key and name is not None:
            tag, name = yield from self._parameter(parameters, name, given)
        closes = "}" if given else "{}"
        if tag in self._marks.ends or not (yield from self.peek()):
            self.drop()
            self.pieces += [] if self.is_cut else [CallArguments(closes)]
        else:
            yield from self.broken_arguments(closes, self._marks.any_end)
        yield from self.closing(self._marks.call_ends)
        self.drop()

    def _are_object(self) -> Read[bool]:
        """Read all arguments as one JSON object, if that follows."""
        yield from self.spaces()
        if (yield from self.peek()) != "{":
            return False
        yield from self.arguments(self._marks.any_end)
        return True

    def _ended(self, ends: Markers) -> Read[None]:
        yield from self.spaces()
        yield from self.closing(ends)
        self.drop()

    def _tag(self) -> Read[_Tag]:
        """Read the next parameter's tag and name. If another tag follows, return it unread."""
        yield from self.spaces()
        tag = yield from self.closing(self._marks.within)
        if tag == self._tags.key:
            return tag, (yield from self._name())
        if tag:
            self.unread(tag)
        return tag, None

    def _name(self) -> Read[str | None]:
        """Read a parameter's name and the tags before its value; None if a tag is missing."""
        name = yield from self.run(self._marks.parameter, _MAX_NAME)
        for tag in self._marks.keyed:
            yield from self.spaces()
            if not (yield from self.closing(tag)):
                return None
        if self._marks.types is not None:
            self._kind = yield from self.closing(self._marks.types)
            if not self._kind:
                return None
        return name.strip()

    def _parameter(self, parameters: ParameterTypes, name: str, given: set[str]) -> Read[_Tag]:
        """Send a parameter's value. Read and return the tag after it."""
        self.pieces.append(CallArguments(f"{', ' if given else '{'}{string(name)}: "))
        given.add(name)
        if self._tags.pad:
            yield from self.literal(_LINE)
        self.drop()
        value = StreamedValue(self._types_of(name, parameters))
        self.pieces += value.begin()
        yield from self._quoted(value)
        while True:
            found = yield from self.until(self._marks.value_ends, value.add, strips=False)
            if found in self._marks.closes_value:
                if not value.may_hold_tags or (yield from self._is_closed(value)):
                    self.drop()
                    self.pieces += value.end()
                    return (yield from self._tag())
                continue
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

    def _is_closed(self, value: StreamedValue) -> Read[bool]:
        """Read on after a closing tag; return False if the tag is part of the value.

        It is part of the value if text follows the tag, and then another closing tag.
        """
        yield from self.spaces()
        after = yield from self.closing(self._after_value)
        if after:
            self.unread(after)
        closing = self.held()
        self.drop()
        if after or not (yield from self.peek()):
            return True
        text: list[str] = []
        found = yield from self.until(self._marks.value_ends, text.append, strips=False)
        if found not in self._marks.closes_value:
            self.drop()
            self.put_back("".join((*text, found)))
            return True
        self.unread(found)
        self.hold("".join((closing, *text)))
        self.send(value.add)
        return False

    def _quoted(self, value: StreamedValue) -> Read[None]:
        if self._marks.quote and (yield from self.literal(self._marks.quote[0])):
            self.drop()
            found = yield from self.until(self._marks.quote[1], value.add, strips=False)
            self.drop() if found else self.send(value.add)

    def _types_of(self, name: str, parameters: ParameterTypes) -> Set[str]:
        """Return a value's JSON types: the schema's types that the value's tag allows."""
        types = parameters.types(name)
        if not self._kind:
            return types
        kind = self._marks.kinds[self._kind]
        if kind == "string":
            return {kind} if kind in types else types
        return (types - {"string"}) or types or OTHERS

    def _tag_after(
        self, found: str, parameters: ParameterTypes, given: Collection[str]
    ) -> Read[_Tag]:
        """Read the tag after an unclosed value; return "" if the tag is part of the value.

        The tag ends the value if it begins a parameter that was not given yet. The tag also ends
        the value if the tag ends the call, and another call or the turn's end follows.
        """
        if found == self._tags.key:
            name = yield from self._name()
            is_next = name in parameters and name not in given
            return (found, name) if is_next else ("", None)
        if found == self._tags.call_end and self._marks.block_ends is not None:
            yield from self.spaces()
            yield from self.literal(self._marks.block_ends)
        yield from self.run(BETWEEN)
        another = yield from self.literal(self._marks.begins)
        if another:
            self.unread(another)
        is_end = another or not (yield from self.peek())
        return (found if is_end and not self.is_cut else ""), None
