"""The interface of tool formats and formats of reasoning, and of the parser that both give.

Rules of parsing:

- Fed at every possible split of a text, a parser gives the same pieces when adjacent ones of a
  kind are joined.
- What looks like a call and is none (an unknown tool's name, no JSON, a marker that nothing
  follows) is text, whole and unchanged.
- Once `CallStarted` was sent, what follows is the call's arguments as far as they can be read, and
  a JSON object: what is missing is added at the end, what cannot be read is text after the call.
- Whitespace around markers and between calls is not text.
- Work is linear in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from msgspec import Struct

from gateway.turn_formats.pieces import Piece

Schema = Mapping[str, Any]  # a JSON schema, as the client sent it

# The text that tells a model of tools, each as it was sent.
ToolsText = Callable[[Sequence[Mapping[str, Any]]], str]


class ToolSpec(Struct, frozen=True):
    """A tool that a request offers.

    `parameters` is a JSON schema of an object; None: the tool takes none. `strict`: a grammar
    must follow the schema to the letter, or be refused where llguidance does not know a keyword;
    otherwise such a keyword is passed over.
    """

    name: str
    parameters: dict[str, Any] | None
    strict: bool = False


class TurnParser(Protocol):
    """A reader of one turn. `end` is called once, after the last `feed`."""

    @property
    def is_over(self) -> bool:
        """True if the turn ended before the text did: what follows is dropped, whatever it is."""

    def feed(self, text: str) -> list[Piece]:
        """Return as much as is certain; what may be the beginning of a marker is held back."""

    def end(self, *, is_cut: bool = False) -> list[Piece]:
        """Return what was held back, when no more text comes.

        With `is_cut` the turn would have gone on: what could have become a mark, or the head of
        a call, is dropped, and arguments that are not whole stay so.
        """


class ToolFormat(Protocol):
    """The form in which a family of models writes calls.

    The grammars are in llguidance's Lark dialect, with the rule `start`. They are of what follows
    the reasoning (`ReasoningFormat.before`).
    """

    name: ClassVar[str]  # as in --tool-format
    markers: ClassVar[tuple[str, ...]]  # tokens that must be visible in the text for the parser
    call_marks: ClassVar[tuple[str, ...]]  # with which calls begin after text
    reads_reasoning: ClassVar[bool]  # the parser is needed without tools, too

    @property
    def tools_text(self) -> ToolsText | None:
        """The text of tools for templates that show none, as documented; None: nobody did."""

    def is_in(self, template: str) -> bool:
        """Tell whether a chat template's source, or a turn that it shows, writes calls this way."""

    def parser(self, tools: Sequence[ToolSpec]) -> TurnParser:
        """Make a reader of a turn in which these tools may be called."""

    def opened(self, prompt: str) -> str:
        """Return the beginning of the turn in a rendered prompt; the parser must read it first."""

    def resumed(self, turn: str, prompt: str) -> str:
        """Write the rest of turns of the grammar `turn`, where a prompt ends within a thought."""

    def call_grammar(
        self, tools: Sequence[ToolSpec], *, at_least: int = 1, at_most: int | None = None
    ) -> str:
        """Write the grammar of turns that call these tools; 1 <= `at_least` <= `at_most`."""

    def text_grammar(self, tools: Sequence[ToolSpec]) -> str:
        """Write the grammar of any text, with calls anywhere that follow their tools' schemas."""

    def around(self, text: str, prompt: str) -> str:
        """Write turns whose answer is of the grammar `text`, after a rendered `prompt`'s end."""
