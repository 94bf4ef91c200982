"""The base of formats whose calls are in a block that begins with a marker.

A block is the marker, `opens`, calls separated by `between_calls`, and `closes`. If `between_calls`
is None, a block has one call, and several blocks may follow each other.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gateway.turn_formats.grammar import ANY_TEXT, GrammarText, checked, repeated
from gateway.turn_formats.turn_format import ToolSpec, ToolsText, WrittenCall


class UnmarkedText:
    """The base of a `ToolFormat` in which no marker delimits the answer's text."""

    reads_reasoning: ClassVar[bool] = False
    marks_text: ClassVar[bool] = False
    result_role: ClassVar[str] = "tool"

    def __init__(self, special_tokens: Mapping[str, int] | None = None) -> None:
        self.special_tokens = special_tokens or {}

    @property
    def tools_text(self) -> ToolsText | None:
        return None

    def turns(self, text: str, calls: Sequence[WrittenCall]) -> Sequence[Mapping[str, str]] | None:
        del text, calls
        return None

    def opened(self, prompt: str) -> str:
        del prompt
        return ""

    def resumed(self, turn: str, prompt: str) -> str:
        del prompt
        return turn

    def around(self, text: str, prompt: str) -> str:
        del prompt
        return text


class BlockFormat(UnmarkedText):
    """The base of formats with blocks. A subclass adds markers and a parser."""

    trigger: ClassVar[str]
    opens: ClassVar[str] = ""
    closes: ClassVar[str] = ""
    between_calls: ClassVar[str | None] = None
    between_blocks: ClassVar[str] = ""
    after_text: ClassVar[str] = (
        ""  # text between a turn's text and its calls, as written by `turns`
    )

    def written(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Write a call within a block; return None if the format writes no calls."""
        del name, arguments
        return None

    def turns(self, text: str, calls: Sequence[WrittenCall]) -> Sequence[Mapping[str, str]] | None:
        spelled = [one for one in (self.written(*call) for call in calls) if one is not None]
        if len(spelled) < len(calls):
            return None
        blocks = spelled if self.between_calls is None else [self.between_calls.join(spelled)]
        whole = [f"{self.trigger}{self.opens}{one}{self.closes}" for one in blocks]
        said = text + self.after_text if text.strip() else ""
        return [{"content": said + self.between_blocks.join(whole)}]

    def opening(self, grammar: GrammarText) -> str:
        """Write the grammar of the text between a block's marker and its first call."""
        return grammar.spelled(self.opens)

    def opening_after_text(self, grammar: GrammarText) -> str:
        """Write the grammar of any text up to a block, then the block's opening."""
        return f"{grammar.up_to(self.trigger)} {self.opening(grammar)}"

    def last_text(self, grammar: GrammarText) -> str:
        """Write the grammar of the text after the last block, or of a turn without a block."""
        del grammar
        return ANY_TEXT

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        """Write the grammar of one call of `tool` within a block."""
        raise NotImplementedError

    def call_grammar(
        self, tools: Sequence[ToolSpec], *, at_least: int = 1, at_most: int | None = None
    ) -> str:
        checked(tools, at_least, at_most)
        grammar = GrammarText(self.special_tokens)
        opens = f"{grammar.spelled(self.trigger)} {self.opening(grammar)}"
        if self.between_calls is not None:
            calls = self._calls(grammar, tools, at_least, at_most)
            return grammar.source(f"{opens} {calls} {grammar.spelled(self.closes)}")
        calls = self._calls(grammar, tools, 1, 1)
        block = grammar.rule("block", f"{opens} {calls} {grammar.spelled(self.closes)}")
        between = grammar.spelled(self.between_blocks)
        return grammar.source(repeated(block, between, at_least, at_most))

    def text_grammar(self, tools: Sequence[ToolSpec]) -> str:
        grammar = GrammarText(self.special_tokens)
        if not tools:
            return grammar.source(self.last_text(grammar))
        opens = self.opening_after_text(grammar)
        calls = self._calls(grammar, tools, 1, 1 if self.between_calls is None else None)
        blocks = f"({opens} {calls} {grammar.spelled(self.closes)})*"
        return grammar.source(f"{blocks} {self.last_text(grammar)}")

    def _calls(
        self, grammar: GrammarText, tools: Sequence[ToolSpec], at_least: int, at_most: int | None
    ) -> str:
        call = grammar.one_of("call", [self.call(grammar, tool) for tool in tools])
        return repeated(call, grammar.spelled(self.between_calls or ""), at_least, at_most)


def call_object(grammar: GrammarText, tool: ToolSpec, arguments: str = "arguments") -> str:
    """Write the grammar of `{"name": ..., "arguments": {...}}`, spaced as in chat templates."""
    name = json.dumps(tool.name, ensure_ascii=False)
    head = grammar.spelled(f'{{"name": {name}, "{arguments}": ')
    return f"{head} {grammar.arguments(tool)} {grammar.spelled('}')}"
