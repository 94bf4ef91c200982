"""Mistral: calls after `[TOOL_CALLS]`, as a list of objects or, since tokenizer v11, one by one.

    [TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}}]
    [TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]get_time[ARGS]{}

Both parsers read both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from gateway.turn_formats.calls import CallReader
from gateway.turn_formats.families.block_format import BlockFormat, call_object
from gateway.turn_formats.grammar import GrammarText
from gateway.turn_formats.pieces import TextPiece
from gateway.turn_formats.reading import Markers, Read
from gateway.turn_formats.turn_format import ToolSpec

_CALLS, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_BEGINS, _ARGS_FOLLOW, _ID_FOLLOWS = Markers(_CALLS), Markers(_ARGS), Markers(_ID)
_LIST, _NEXT, _LIST_ENDS = Markers("["), Markers(","), Markers("]")
_NAME = re.compile(r"[^\[{\s]*")
_MAX_NAME = 256


class MistralFormat(BlockFormat):
    """A `ToolFormat`: a list of objects."""

    name: ClassVar[str] = "mistral"
    markers: ClassVar[tuple[str, ...]] = (_CALLS, _ARGS, _ID)
    trigger = _CALLS
    closes = "]"
    between_calls = ", "

    def is_in(self, template: str) -> bool:
        """Whether a chat template's source writes calls this way."""
        return _CALLS in template and _ARGS not in template

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        """Reads a turn in which these tools may be called."""
        return _MistralReader(tools)

    def opening(self, grammar: GrammarText) -> str:
        """What follows the marker: some templates write a space."""
        return f"{grammar.spelled(' ')}? {grammar.spelled('[')}"

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        """One call within a block."""
        return call_object(grammar, tool)


class MistralV11Format(BlockFormat):
    """A `ToolFormat`: each call after a marker of its own."""

    name: ClassVar[str] = "mistral_v11"
    markers: ClassVar[tuple[str, ...]] = (_CALLS, _ARGS, _ID)
    trigger = _CALLS

    def is_in(self, template: str) -> bool:
        """Whether a chat template's source writes calls this way."""
        return _CALLS in template and _ARGS in template

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        """Reads a turn in which these tools may be called."""
        return _MistralReader(tools)

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        """One call within a block."""
        return f"{grammar.spelled(tool.name + _ARGS)} {grammar.arguments(tool)}"


class _MistralReader(CallReader):
    def turn(self) -> Read[None]:
        while (yield from self.until(_BEGINS, TextPiece)):
            yield from self.spaces()
            follows = yield from self.peek()
            if follows == "[":
                yield from self._list()
            elif follows == "{":
                yield from self._ended((yield from self.call_object(_BEGINS)))
            else:
                yield from self._ended((yield from self._named()))
        self.send(TextPiece)

    def _ended(self, was_call: bool) -> Read[None]:
        if was_call:
            yield from self.spaces()
            self.drop()

    def _list(self) -> Read[None]:
        yield from self.literal(_LIST)
        yield from self.spaces()
        while (yield from self.call_object(_BEGINS)):
            yield from self.spaces()
            if not (yield from self.literal(_NEXT)):
                yield from self.literal(_LIST_ENDS)
                yield from self._ended(True)
                return
            yield from self.spaces()

    def _named(self) -> Read[bool]:
        name = yield from self.run(_NAME, _MAX_NAME)
        if (yield from self.literal(_ID_FOLLOWS)):
            yield from self.run(_NAME, _MAX_NAME)
        yield from self.literal(_ARGS_FOLLOW)
        yield from self.spaces()
        if (yield from self.peek()) != "{" or not self.started(name):
            self.send(TextPiece)
            return False
        yield from self.arguments(_BEGINS)
        return True
