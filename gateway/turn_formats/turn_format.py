"""The interfaces of a tool format and of the parser that it makes.

Rules of parsing:

- A parser gives the same pieces wherever the text was split, when adjacent pieces of a kind are
  joined.
- Text that looks like a call but is none (an unknown tool's name, no JSON, a marker that nothing
  follows) is sent as text, whole and unchanged.
- After `CallStarted` the parser sends the arguments as far as it can read them. They are a JSON
  object: a missing end is added, and text that cannot be read is sent as text after the call.
- Whitespace around markers and between calls is not text.
- Work is linear in the text.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from msgspec import Struct

from gateway.turn_formats.pieces import Piece

Schema = Mapping[str, Any]  # a JSON schema, as the client sent it
LARK = "lark"  # schema keyword whose value, a `LarkText`, is the grammar of a free-text tool's text

# A writer of the text that describes the request's tools to a model.
ToolsText = Callable[[Sequence[Mapping[str, Any]]], str]


class LarkText(str):
    """A Lark grammar that the gateway has read; a client's JSON never has this type of string."""

    __slots__ = ()


def lark_in(schema: Schema) -> LarkText | None:
    """Return the grammar of a free-text tool's text, if `schema` has one."""
    lark = schema.get(LARK)
    return lark if isinstance(lark, LarkText) else None


class ToolSpec(Struct, frozen=True):
    """A tool that a request offers.

    `parameters` is a JSON schema of an object; None if the tool takes no arguments. With `strict` a
    schema with a keyword that llguidance does not know is refused, otherwise the keyword is passed
    over.
    """

    name: str
    parameters: dict[str, Any] | None
    strict: bool = False


class TurnParser(Protocol):
    """A parser of one turn; `end` is called once, after the last `feed`."""

    @property
    def is_over(self) -> bool:
        """True if the turn is over; any text that follows is dropped."""

    def feed(self, text: str) -> list[Piece]:
        """Return the pieces that are certain; hold back text that may begin a marker."""

    def end(self, *, is_cut: bool = False) -> list[Piece]:
        """End the turn; return the pieces that were held back.

        `is_cut` says that the turn was cut off: text that may be the beginning of a marker or of a
        call is dropped, and incomplete arguments are not completed.
        """


class ToolFormat(Protocol):
    """The format in which a family of models writes tool calls.

    The grammars are in llguidance's Lark dialect, with the rule `start`. They describe the text
    after the reasoning (`ReasoningFormat.before` adds the reasoning).
    """

    name: ClassVar[str]  # a value of --tool-format
    markers: ClassVar[tuple[str, ...]]  # special tokens that the parser must see in the text
    call_marks: ClassVar[tuple[str, ...]]  # markers that may begin calls after text
    reads_reasoning: ClassVar[bool]  # whether the parser itself reads reasoning
    marks_text: ClassVar[bool]  # whether texts have markers; if so, every turn needs the parser

    @property
    def tools_text(self) -> ToolsText | None:
        """The documented text that tells a model of tools, if its template does not; else None."""

    def is_in(self, template: str) -> bool:
        """Tell whether a template's source, or a turn rendered by it, has calls in this format."""

    def parser(self, tools: Sequence[ToolSpec]) -> TurnParser:
        """Make a parser of a turn that may call `tools`."""

    def opened(self, prompt: str) -> str:
        """Return the beginning of the answer within `prompt`, which the parser must read first."""

    def resumed(self, turn: str, prompt: str) -> str:
        """Write the grammar of the rest of a thought that `prompt` leaves open, then of `turn`."""

    def call_grammar(
        self, tools: Sequence[ToolSpec], *, at_least: int = 1, at_most: int | None = None
    ) -> str:
        """Write the grammar of turns with calls of `tools`; 1 <= `at_least` <= `at_most`."""

    def text_grammar(self, tools: Sequence[ToolSpec]) -> str:
        """Write the grammar of any text, with calls anywhere that follow their tools' schemas."""

    def around(self, text: str, prompt: str) -> str:
        """Write the grammar of turns after `prompt` whose text follows the grammar `text`."""
