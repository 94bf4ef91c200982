"""Mistral: calls after `[TOOL_CALLS]`, as a list of objects or, since tokenizer v11, one by one.

    [TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}}]
    [TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]get_time[ARGS]{}

The parser of each format reads both forms.
"""

import re
from collections.abc import Sequence
from typing import ClassVar

from gateway.turn_formats.calls import CallReader
from gateway.turn_formats.grammar import GrammarText
from gateway.turn_formats.pieces import TextPiece
from gateway.turn_formats.reading import Markers, Read
from gateway.turn_formats.shapes.block_format import BlockFormat, call_object
from gateway.turn_formats.turn_format import ToolSpec

_CALLS, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_BEGINS, _ARGS_FOLLOW, _ID_FOLLOWS = Markers(_CALLS), Markers(_ARGS), Markers(_ID)
_NAME = re.compile(r"[^\[{\s]*")
_MAX_NAME = 256


class MistralFormat(BlockFormat):
    """The `ToolFormat` of Mistral before tokenizer v11: a list of call objects."""

    name: ClassVar[str] = "mistral"
    markers: ClassVar[tuple[str, ...]] = (_CALLS, _ARGS, _ID)
    call_marks: ClassVar[tuple[str, ...]] = (_CALLS,)
    trigger = _CALLS
    closes = "]"
    between_calls = ", "

    def is_in(self, template: str) -> bool:
        return _CALLS in template and _ARGS not in template

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        return _MistralReader(tools)

    def opening(self, grammar: GrammarText) -> str:
        """Write the grammar of `[` after the marker. Some templates write a space between them."""
        return f"{grammar.spelled(' ')}? {grammar.spelled('[')}"

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        return call_object(grammar, tool)


class MistralV11Format(BlockFormat):
    """The `ToolFormat` of Mistral since tokenizer v11: a marker before each call."""

    name: ClassVar[str] = "mistral_v11"
    markers: ClassVar[tuple[str, ...]] = (_CALLS, _ARGS, _ID)
    call_marks: ClassVar[tuple[str, ...]] = (_CALLS,)
    trigger = _CALLS

    def is_in(self, template: str) -> bool:
        return _CALLS in template and _ARGS in template

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        return _MistralReader(tools)

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        return f"{grammar.spelled(tool.name + _ARGS)} {grammar.arguments(tool)}"


class _MistralReader(CallReader):
    def turn(self) -> Read[None]:
        while (yield from self.until(_BEGINS, TextPiece)):
            while (yield from self._calls()) and (yield from self.next_block(_BEGINS)):
                continue
        self.send(TextPiece)

    def _calls(self) -> Read[bool]:
        """Read calls after their marker. If the text is no call, send it and return False."""
        yield from self.spaces()
        while (yield from self.literal(_BEGINS)):  # Mistral 7B repeats the marker
            yield from self.spaces()
        if (yield from self.peek()) in ("[", "{"):
            return (yield from self.call_objects(_BEGINS))
        name = yield from self.run(_NAME, _MAX_NAME)
        if (yield from self.literal(_ID_FOLLOWS)):
            yield from self.run(_NAME, _MAX_NAME)
        yield from self.literal(_ARGS_FOLLOW)
        is_call = yield from self.call_of(name, _BEGINS)
        if not is_call:
            self.send(TextPiece)
        return is_call
