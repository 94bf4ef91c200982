"""The interfaces of a tool format and of the parser that it makes.

Rules of parsing:

- A parser gives the same joined pieces wherever the text was split.
- Text that looks like a call but is none is sent as text, whole and unchanged. Examples are an
  unknown tool's name, broken JSON, or a marker that nothing follows.
- After `CallStarted` the parser sends the arguments up to the first text that it cannot read. They
  are a JSON object, because the parser adds a missing end. The text that it cannot read is sent as
  text after the call.
- Whitespace around markers and between calls is not text.
- Work is linear in the text.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from msgspec import Struct

from gateway.turn_formats.pieces import Piece

Schema = Mapping[str, Any]  # a JSON schema, as the client sent it
LARK = "lark"  # schema keyword whose value, a `LarkText`, is the grammar of a free-text tool's text

# A call that is written as text: the tool's name and the arguments.
WrittenCall = tuple[str, Mapping[str, Any]]

# A writer of the text that describes the request's tools to a model.
ToolsText = Callable[[Sequence[Mapping[str, Any]]], str]


class LarkText(str):
    """A Lark grammar that the gateway has read. A client's JSON never has this type of string."""

    __slots__ = ()


def lark_in(schema: Schema) -> LarkText | None:
    """Return the grammar of a free-text tool's text, if `schema` has one."""
    lark = schema.get(LARK)
    return lark if isinstance(lark, LarkText) else None


class ToolSpec(Struct, frozen=True):
    """A tool that a request offers.

    `parameters` is a JSON schema of an object, or None if the tool takes no arguments. llguidance
    does not know all keywords of schemas. With `strict`, a schema with an unknown keyword is
    refused. Otherwise the keyword is ignored.
    """

    name: str
    parameters: dict[str, Any] | None
    strict: bool = False


class TurnParser(Protocol):
    """A parser of one turn. `end` is called once, after the last `feed`."""

    @property
    def is_over(self) -> bool:
        """True if the turn is over. Later text is dropped."""

    def feed(self, text: str) -> list[Piece]:
        """Return the pieces that are certain. Hold back text that may begin a marker."""

    def end(self, *, is_cut: bool = False) -> list[Piece]:
        """End the turn; return the pieces that were held back.

        `is_cut` means that the turn was cut off. An unfinished marker or call is then dropped, and
        incomplete arguments are not completed.
        """


class ToolFormat(Protocol):
    """The format in which a family of models writes tool calls.

    The grammars are in llguidance's Lark dialect, with the rule `start`. The grammars describe the
    text after the reasoning. `ReasoningFormat.before` adds the reasoning.
    """

    name: ClassVar[str]  # a value of --tool-format
    markers: ClassVar[tuple[str, ...]]  # special tokens that the parser must see in the text
    call_marks: ClassVar[tuple[str, ...]]
    reads_reasoning: ClassVar[bool]
    marks_text: ClassVar[bool]  # whether texts have markers; if so, every turn needs the parser
    result_role: ClassVar[str]  # role of results in templates that show no calls

    @property
    def tools_text(self) -> ToolsText | None:
        """The documented text that tells a model of tools; None if its template shows tools."""

    def turns(self, text: str, calls: Sequence[WrittenCall]) -> Sequence[Mapping[str, str]] | None:
        """Write a turn's text and calls as messages of a template that shows no calls.

        Each message has its `content` and further fields, but no role. Returns None if the format
        writes no calls for such templates.
        """

    def is_in(self, template: str) -> bool:
        """Return whether a template's source, or a turn that it rendered, has this format."""

    def parser(self, tools: Sequence[ToolSpec]) -> TurnParser:
        """Make a parser of a turn that may call `tools`."""

    def opened(self, prompt: str) -> str:
        """Return the beginning of the answer within `prompt`, which the parser must read first."""

    def resumed(self, turn: str, prompt: str) -> str:
        """Write the grammar of the rest of a thought that `prompt` leaves open, then of `turn`."""

    def call_grammar(
        self, tools: Sequence[ToolSpec], *, at_least: int = 1, at_most: int | None = None
    ) -> str:
        """Write the grammar of turns with `at_least` (1 or more) to `at_most` calls of `tools`."""

    def text_grammar(self, tools: Sequence[ToolSpec]) -> str:
        """Write the grammar of any text, with calls anywhere that follow their tools' schemas."""

    def around(self, text: str, prompt: str) -> str:
        """Write the grammar of turns after `prompt` whose text follows the grammar `text`."""
