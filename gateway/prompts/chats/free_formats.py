"""The formats of free-text tools: the limits on their texts, and the functions shown for them.

Elsewhere: how the text is read from a call (`offered_tools.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from engine.grammars.syntax.expression import UnsoundGrammar
from engine.grammars.syntax.lark_pattern import pattern_of
from engine.grammars.syntax.lark_reader import START, rules_of_lark
from gateway.prompts.chats.forms import Tool
from gateway.prompts.chats.offered_tools import INPUT, PassedOver
from gateway.turn_formats.turn_format import LARK, LarkText, ToolSpec

NOT_HELD = "the model is shown the grammar; calls are not held to it"
MAX_LARK = 1 << 14  # maximum characters of a request's Lark grammars; each takes 1 to 3 us to read
MAX_INLINED = 1 << 10  # maximum characters of a grammar that is tried as a regular expression


class FreeFormat(Struct, frozen=True, kw_only=True):
    """The text format of a free-text tool. A grammar is shown to the model."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class TextBounds(Struct, frozen=True):
    """The pattern (as in JSON Schema) or the Lark grammar that a free-text tool's texts match.

    Without pattern and grammar any text is allowed, and `why` gives the reason.
    """

    pattern: str | None = None
    lark: str | None = None
    why: str = ""


class FreeFormats:
    """The formats of one request's free-text tools.

    Each format is read once. The sum of the formats' sizes is limited.
    """

    def __init__(self) -> None:
        self._read: dict[FreeFormat, TextBounds] = {}
        self._left = MAX_LARK

    def held(self, format_: FreeFormat | None) -> TextBounds:
        """Return the pattern or grammar for texts of a tool with this format."""
        if format_ is None or format_.type != "grammar" or not format_.definition:
            return TextBounds()
        if format_.syntax == "regex":
            return TextBounds(f"^(?:{format_.definition})$")
        if format_ not in self._read:
            self._read[format_] = self._of_lark(format_.definition)
        return self._read[format_]

    def not_held(self, format_: FreeFormat | None, where: str) -> Iterator[PassedOver]:
        """Make the note that calls of the tool at `where` need not follow the tool's grammar."""
        if format_ is not None and format_.type == "grammar":
            held = self.held(format_)
            if held.pattern is None and held.lark is None:
                yield PassedOver(f"{where}.format", "grammar", NOT_HELD + held.why)

    def _of_lark(self, grammar: str) -> TextBounds:
        self._left -= len(grammar)
        if self._left < 0:
            why = f": the grammars have more than {MAX_LARK} characters together"
            return TextBounds(why=why)
        try:
            rules = rules_of_lark(grammar)
        except UnsoundGrammar as error:
            return TextBounds(why=f": {error}")
        pattern = pattern_of(rules, START) if len(grammar) <= MAX_INLINED else None
        return TextBounds(pattern, grammar if pattern is None else None)


def free_function(
    name: str, description: str | None, format_: FreeFormat | None, formats: FreeFormats
) -> Tool:
    """Convert a free-text tool to a function, which is strict if the tool's text has a pattern."""
    pattern = formats.held(format_).pattern
    held = {} if pattern is None else {"pattern": pattern}
    strict = {} if pattern is None else {"strict": True}
    said = "\n\n".join(text for text in (description, _grammar_text(format_)) if text)
    described = {"description": said} if said else {}
    function = {"name": name, **described, "parameters": _parameters(held), **strict}
    return {"type": "function", "function": function}


def lark_spec(spec: ToolSpec, lark: str) -> ToolSpec:
    """Make the specification of a free-text tool whose texts must follow a Lark grammar.

    The model is not shown the grammar.
    """
    return replace(spec, parameters=_parameters({LARK: LarkText(lark)}), strict=True)


def _parameters(held: dict[str, str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {INPUT: {"type": "string", **held}},
        "required": [INPUT],
        "additionalProperties": False,
    }


def _grammar_text(format_: FreeFormat | None) -> str | None:
    if format_ is None or not format_.definition:
        return None
    kind = "regular expression" if format_.syntax == "regex" else "Lark grammar"
    return f"The input follows this {kind}:\n{format_.definition}"
