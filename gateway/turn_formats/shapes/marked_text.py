"""The base of formats that put markers around texts as well as around calls."""

import re
from collections.abc import Sequence
from typing import ClassVar

from gateway.turn_formats.grammar import ANY_TEXT, GrammarText
from gateway.turn_formats.shapes.block_format import BlockFormat

_TEXT_START = re.compile(r"^start:", re.MULTILINE)


class MarkedText(BlockFormat):
    """The base of formats whose texts are between markers. A subclass gives the markers."""

    marks_text: ClassVar[bool] = True
    text_opens: ClassVar[tuple[str, ...]]
    text_closes: ClassVar[tuple[str, ...]]
    turn_begins: ClassVar[str]  # end of a prompt that has not opened a text

    def before_calls(self, grammar: GrammarText) -> str:
        """Write the grammar of an optional text with markers.

        The prompt may have opened the text already.
        """
        opens = f"{_one_of(grammar, self.text_opens)}?"
        return f"({opens} ({' | '.join(map(grammar.up_to, self.text_closes))}))?"

    def opening_after_text(self, grammar: GrammarText) -> str:
        return f"{self.before_calls(grammar)} {super().opening_after_text(grammar)}"

    def last_text(self, grammar: GrammarText) -> str:
        opens, closes = _one_of(grammar, self.text_opens), _one_of(grammar, self.text_closes)
        return f"{opens}? {ANY_TEXT} {closes}?"

    def around(self, text: str, prompt: str) -> str:
        grammar = GrammarText(self.special_tokens, prefix="response")
        said = prompt.rpartition(self.turn_begins)[2]
        is_open = any(mark in said for mark in self.text_opens)
        opens = "" if is_open else f"{_one_of(grammar, self.text_opens)}?"
        start = grammar.source(f"{opens} said {_one_of(grammar, self.text_closes)}?")
        return f"{start}{_TEXT_START.sub('said:', text, count=1)}"


def _one_of(grammar: GrammarText, marks: Sequence[str]) -> str:
    return f"({' | '.join(map(grammar.spelled, marks))})"
