"""How a family of models marks off what it thinks before it answers.

Where the prompt already opened the reasoning, the turn begins within it. What follows is another
parser's: the tool format's, or plain text. Harmony's reasoning is read with its calls
(`families/harmony.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from gateway.turn_formats.grammar import GrammarText
from gateway.turn_formats.pieces import ReasoningPiece
from gateway.turn_formats.reading import SPACE, Markers, Read, TurnReader
from gateway.turn_formats.turn_format import TurnParser

_TOKEN = re.compile(r"<[^>]*>|\[[^\]]*\]")
_START = re.compile(r"^start:", re.MULTILINE)
_LINES = r"/\n{0,2}/"  # between the reasoning and the answer


class ReasoningFormat(Struct, frozen=True):
    """The marks around reasoning, of which at most one is in a turn, at its beginning."""

    name: str
    opens: str
    closes: str

    @property
    def markers(self) -> tuple[str, ...]:
        """Tokens that must be visible in the text for the parser."""
        found = _TOKEN.match(self.opens)  # a word may follow it
        return (self.opens if found is None else found[0], self.closes)

    def is_in(self, template: str) -> bool:
        """Whether a chat template's source knows these marks."""
        return self.closes in template

    def is_open(self, prompt: str) -> bool:
        """Whether the rendered prompt opened the reasoning already."""
        return prompt.rstrip(SPACE).endswith(self.opens)

    def parser(self, answer: TurnParser, *, is_open: bool) -> TurnParser:
        """Reads the reasoning, and gives what follows to `answer`."""
        return _ReasoningReader(self, answer, is_open=is_open)

    def before(self, grammar: str, special_tokens: Mapping[str, int], *, is_open: bool) -> str:
        """The turns of which what follows the reasoning is a turn of `grammar`.

        Reasoning that is not open yet may be left out.
        """
        head = GrammarText(special_tokens, prefix="reasoning")
        thought = f"{head.up_to(self.closes)} {_LINES}"
        if not is_open:
            thought = f"({head.spelled(self.opens)} {thought})?"
        answer = _START.sub("answer:", grammar, count=1)
        return f"{head.source(f'{thought} answer')}{answer}"


class _ReasoningReader(TurnReader):
    def __init__(self, marks: ReasoningFormat, answer: TurnParser, *, is_open: bool) -> None:
        super().__init__()
        self._opens, self._closes = Markers(marks.opens), Markers(marks.closes)
        self._answer = answer
        self._is_open = is_open

    def turn(self) -> Read[None]:
        yield from self.spaces()
        if (yield from self.literal(self._opens)) or self._is_open:
            yield from self._reasoning()
        while True:
            self.pieces += self._answer.feed(self.take_all())
            if not (yield from self.more()):
                self.pieces += self._answer.end()
                return

    def _reasoning(self) -> Read[None]:
        yield from self.spaces()
        self.drop()
        if not (yield from self.until(self._closes, ReasoningPiece)):
            self.send(ReasoningPiece)
            return
        yield from self.spaces()
        self.drop()


THINK = ReasoningFormat("think", "<think>", "</think>")
MAGISTRAL = ReasoningFormat("magistral", "[THINK]", "[/THINK]")
GEMMA = ReasoningFormat("gemma", "<|channel>thought", "<channel|>")
