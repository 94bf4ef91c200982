"""The interfaces of a tool format and of the parser that it makes.

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

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from msgspec import Struct

from gateway.turn_formats.pieces import Piece

Schema = Mapping[str, Any]  # a JSON schema, as the client sent it
LARK = "lark"  # keyword for the grammar of a free-text tool's text, a `LarkText`

# A writer of the text that describes the request's tools to a model.
ToolsText = Callable[[Sequence[Mapping[str, Any]]], str]


class LarkText(str):
    """A Lark grammar that the gateway has read; JSON has no such string, so no client sends one."""

    __slots__ = ()


def lark_in(schema: Schema) -> LarkText | None:
    """Return the grammar of a free-text tool's text, if that is what the schema is of."""
    lark = schema.get(LARK)
    return lark if isinstance(lark, LarkText) else None


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
    """A parser of one turn; `end` is called once, after the last `feed`."""

    @property
    def is_over(self) -> bool:
        """True if the turn ended before its text: all further text is dropped."""

    def feed(self, text: str) -> list[Piece]:
        """Return the pieces that are certain; hold back text that may begin a marker."""

    def end(self, *, is_cut: bool = False) -> list[Piece]:
        """Return the pieces that were held back; no more text comes.

        With `is_cut` the turn would have gone on: what could have become a mark, or the head of
        a call, is dropped, and arguments that are not whole stay so.
        """


class ToolFormat(Protocol):
    """The format in which a family of models writes tool calls.

    The grammars are in llguidance's Lark dialect, with the rule `start`. They are of what follows
    the reasoning (`ReasoningFormat.before`).
    """

    name: ClassVar[str]  # a value of --tool-format
    markers: ClassVar[tuple[str, ...]]  # special tokens that the parser must see in the text
    call_marks: ClassVar[tuple[str, ...]]  # marks that begin calls after text
    reads_reasoning: ClassVar[bool]  # by the parser itself
    marks_text: ClassVar[bool]  # if so, turns without tools need the parser, too

    @property
    def tools_text(self) -> ToolsText | None:
        """The documented tools text for templates that show no tools; None: none is documented."""

    def is_in(self, template: str) -> bool:
        """Tell whether a template's source, or a turn that it shows, has calls in this format."""

    def parser(self, tools: Sequence[ToolSpec]) -> TurnParser:
        """Make a parser of a turn that may call `tools`."""

    def opened(self, prompt: str) -> str:
        """Return the answer's beginning in a rendered prompt, which the parser must read first."""

    def resumed(self, turn: str, prompt: str) -> str:
        """Write the grammar of a thought that `prompt` leaves open, then of turns of `turn`."""

    def call_grammar(
        self, tools: Sequence[ToolSpec], *, at_least: int = 1, at_most: int | None = None
    ) -> str:
        """Write the grammar of turns with calls of `tools`; 1 <= `at_least` <= `at_most`."""

    def text_grammar(self, tools: Sequence[ToolSpec]) -> str:
        """Write the grammar of any text, with calls anywhere that follow their tools' schemas."""

    def around(self, text: str, prompt: str) -> str:
        """Write the grammar of turns after `prompt` whose answer follows the grammar `text`."""
