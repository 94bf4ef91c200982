"""The parts of structural tags, with xgrammar's names of fields, which vLLM and SGLang also use.

Elsewhere: how a part becomes a grammar (`structural_grammar.py`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

MAX_TIMES = 10_000


class Part(Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """A node of a structural tag's tree."""


class ConstString(Part, frozen=True, tag="const_string"):
    """A fixed text."""

    value: str


class JsonSchema(Part, frozen=True, tag="json_schema"):
    """A JSON value that follows a schema, with properties in the schema's order."""

    json_schema: dict[str, Any] | bool
    style: Literal["json"] = "json"
    any_order: Literal[False] = False

    @property
    def schema(self) -> dict[str, Any]:
        """The schema as an object."""
        schema = self.json_schema
        return schema if isinstance(schema, dict) else {} if schema else {"enum": []}


class Regex(Part, frozen=True, tag="regex"):
    """A text that matches a regular expression as a whole."""

    pattern: str


class Ebnf(Part, frozen=True, tag="grammar"):
    """A text of the rule `root` of an EBNF grammar, or of the rule `start` of a Lark grammar."""

    grammar: str
    syntax: Literal["ebnf", "lark"] = "ebnf"


class AnyText(Part, frozen=True, tag="any_text"):
    """Any text without any of `excludes`. Within a tag, the text ends where the tag ends."""

    excludes: list[str] = []
    max_chars: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None

    @property
    def is_bounded(self) -> bool:
        """True if not all texts are allowed."""
        return bool(self.excludes) or self.max_chars is not None


class Sequence_(Part, frozen=True, tag="sequence"):
    """A sequence of formats."""

    elements: list[Format]


class Or(Part, frozen=True, tag="or"):
    """A choice between formats."""

    elements: list[Format]


class Repeated(Part, frozen=True):
    """A format several times in a row."""

    content: Format

    @property
    def bounds(self) -> tuple[int, int | None]:
        """The minimum and maximum number of times; None: no maximum."""
        return 0, None


class Optional_(Repeated, frozen=True, tag="optional"):
    """A format or nothing."""

    @property
    def bounds(self) -> tuple[int, int | None]:
        return 0, 1


class Star(Repeated, frozen=True, tag="star"):
    """A format any number of times."""


class Plus(Repeated, frozen=True, tag="plus"):
    """A format once or more."""

    @property
    def bounds(self) -> tuple[int, int | None]:
        return 1, None


class Times(Repeated, frozen=True, tag="repeat"):
    """A format from `min` to `max` times. A `max` of -1 means no limit."""

    min: Annotated[int, Meta(ge=0, le=MAX_TIMES)]
    max: Annotated[int, Meta(ge=-1, le=MAX_TIMES)]

    @property
    def bounds(self) -> tuple[int, int | None]:
        return self.min, None if self.max == -1 else self.max


class Tag(Part, frozen=True, tag="tag"):
    """A format between two fixed texts. Any of several `end` texts may end it."""

    begin: str
    content: Format
    end: str | list[str]

    @property
    def ends(self) -> list[str]:
        """The texts that may end the tag."""
        return [self.end] if isinstance(self.end, str) else self.end


class TriggeredTags(Part, frozen=True, tag="triggered_tags"):
    """Any text with tags. A trigger in the text begins a tag.

    With `at_least_one` the text begins with a tag.
    """

    triggers: list[str]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: list[str] = []


class TagsWithSeparator(Part, frozen=True, tag="tags_with_separator"):
    """Tags with a separator between them, and no other text."""

    tags: list[Tag]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


Format: TypeAlias = (
    ConstString
    | JsonSchema
    | Regex
    | Ebnf
    | AnyText
    | Sequence_
    | Or
    | Optional_
    | Star
    | Plus
    | Times
    | Tag
    | TriggeredTags
    | TagsWithSeparator
)
