"""The calls of several families: JSON objects between two markers, alone or in a list.

A family gives its markers. The grammars and the parser are made from them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gateway.turn_formats.calls import CallReader
from gateway.turn_formats.grammar import GrammarText
from gateway.turn_formats.pieces import TextPiece
from gateway.turn_formats.reading import Markers, Read
from gateway.turn_formats.shapes.block_format import BlockFormat, call_object
from gateway.turn_formats.turn_format import ToolSpec

_FENCES, _FENCE_ENDS = Markers("```json", "```"), Markers("```")


class ObjectFormat(BlockFormat):
    """The base of formats with call objects. A subclass gives its markers.

    A block is a list of objects, unless `opens`, `between` and `closes` are set otherwise.
    """

    markers: ClassVar[tuple[str, ...]] = ()
    call_marks: ClassVar[tuple[str, ...]] = ()
    # whether call objects are written as `{"get_weather": {...}}`
    names_are_keys: ClassVar[bool] = False
    around_text: ClassVar[tuple[str, ...]] = ()
    tokens: ClassVar[tuple[str, ...]] = ()  # control tokens within markers
    after_text = "\n"
    end: ClassVar[str]

    def __init_subclass__(
        cls,
        *,
        begin: str,
        end: str = "",
        opens: str = "[",
        between: str | None = ", ",
        closes: str = "]",
        also: tuple[str, ...] = (),
        **more: Any,
    ) -> None:
        """Declare a format by the markers before and after calls, and by the texts around calls.

        Calls may also begin with one of the markers `also`.
        """
        super().__init_subclass__(**more)
        cls.trigger, cls.opens, cls.end, cls.closes = begin, opens, end, closes + end
        cls.between_calls, cls.between_blocks = between, "\n"
        cls.markers = tuple(
            dict.fromkeys(filter(None, (begin, *also, end, *cls.around_text, *cls.tokens)))
        )
        cls.call_marks = (begin, *also)

    def is_in(self, template: str) -> bool:
        return self.trigger + self.opens in template

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        reader = ObjectReader(tools, self.call_marks, self.end, self.around_text)
        reader.names_are_keys = self.names_are_keys
        return reader

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        return call_object(grammar, tool)

    def written(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        call = {name: arguments} if self.names_are_keys else {"name": name, "arguments": arguments}
        return json.dumps(call, ensure_ascii=False)


class ObjectReader(CallReader):
    """A parser of call objects after `opens`. Markers in `around_text` are dropped."""

    def __init__(
        self,
        tools: Sequence[ToolSpec],
        opens: Sequence[str],
        closes: str,
        around_text: Sequence[str] = (),
    ) -> None:
        """Read calls of `tools`; `closes` is "" if no marker ends a block."""
        super().__init__(tools)
        self._opens, self._closes = Markers(*opens), Markers(closes) if closes else None
        self._either = Markers(*opens, *filter(None, (closes,)))
        self._around_text = frozenset(around_text)
        self._begins = Markers(*opens, *around_text)

    def turn(self) -> Read[None]:
        while found := (yield from self.until(self._begins, TextPiece)):
            if found in self._around_text:
                yield from self.spaces()
                self.drop()
            else:
                yield from self._calls()
        self.send(TextPiece)

    def _calls(self) -> Read[None]:
        """Read the calls after the opening marker, even several if the format allows only one.

        The calls may be in a Markdown fence.
        """
        yield from self.spaces()
        fence = yield from self.literal(_FENCES)
        yield from self.spaces()
        while (yield from self.call_objects(self._either)):
            if fence:
                yield from self.spaces()
                yield from self.closing(_FENCE_ENDS)
                self.drop()
            if not (yield from self.next_block(self._opens, self._closes)):
                return
            yield from self.spaces()
