"""Structural tags: a text in which some parts follow schemas, as vLLM's and SGLang's clients ask.

Both spellings are read: `structures` with `triggers`, and the newer `format`, a tree.

Knows: what a structural tag says, and how that is a grammar. Does not know: requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, TypeAlias

from msgspec import Struct, field

from gateway.turn_formats.grammar import ANY_TEXT, GrammarText, quoted_in_gbnf, repeated

MAX_PARTS = 1024  # bounds the comparison of each trigger with each tag


class _Part(Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """A node of a structural tag's tree."""


class ConstString(_Part, frozen=True, tag="const_string"):
    """A fixed text."""

    value: str


class JsonSchema(_Part, frozen=True, tag="json_schema"):
    """A JSON value that follows a schema."""

    json_schema: dict[str, Any]


class Regex(_Part, frozen=True, tag="regex"):
    """A text that a whole regular expression matches."""

    pattern: str


class Ebnf(_Part, frozen=True, tag="grammar"):
    """A text of the rule `root` of an EBNF grammar."""

    grammar: str


class AnyText(_Part, frozen=True, tag="any_text"):
    """Any text; within a tag, up to the tag's end."""


class Sequence_(_Part, frozen=True, tag="sequence"):
    """A sequence of formats."""

    elements: list[Format]


class Or(_Part, frozen=True, tag="or"):
    """A choice between formats."""

    elements: list[Format]


class Tag(_Part, frozen=True, tag="tag"):
    """A format between two fixed texts."""

    begin: str
    content: Format
    end: str


class TriggeredTags(_Part, frozen=True, tag="triggered_tags"):
    """Any text with tags; a trigger in the text begins a tag."""

    triggers: list[str]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False


class TagsWithSeparator(_Part, frozen=True, tag="tags_with_separator"):
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
    | Tag
    | TriggeredTags
    | TagsWithSeparator
)


class _Structure(Struct, frozen=True, forbid_unknown_fields=True):
    begin: str
    schema: dict[str, Any]
    end: str


_TEXTS = (ConstString, Regex, Ebnf, AnyText)
_IN_GBNF = (*_TEXTS, JsonSchema)


class StructuralTag(Struct, frozen=True):
    """The structural tag of a whole answer: `format`, or else any text with `structures`."""

    format: Format | None = None
    structures: list[_Structure] = field(default_factory=list)
    triggers: list[str] = field(default_factory=list)

    def problem(self) -> str | None:
        """Return the reason why the structural tag cannot be followed; None if it can."""
        tree = self._tree()
        if _count(tree) > MAX_PARTS:
            return f"it has more than {MAX_PARTS} parts and triggers"
        return _problem(tree)

    def lark(self, special_tokens: Mapping[str, int]) -> str:
        """Write the structural tag's Lark grammar; `special_tokens` are as in `grammar.py`."""
        grammar = GrammarText(special_tokens, prefix="tag_")
        return grammar.source(_body(grammar, self._tree()))

    def _tree(self) -> Format:
        if self.format is not None:
            return self.format
        tags = [Tag(one.begin, JsonSchema(one.schema), one.end) for one in self.structures]
        return TriggeredTags(self.triggers, tags)


def _count(part: Format) -> int:
    """Count the parts and triggers in a format, the format included."""
    match part:
        case Sequence_(elements) | Or(elements):
            return 1 + sum(map(_count, elements))
        case Tag(_, content):
            return 1 + _count(content)
        case TriggeredTags(triggers, tags):
            return 1 + len(triggers) + sum(map(_count, tags))
        case TagsWithSeparator(tags):
            return 1 + sum(map(_count, tags))
    return 1


def _problem(part: Format) -> str | None:
    match part:
        case Sequence_(elements) | Or(elements):
            found = map(_problem, elements)
            return next(filter(None, found), None if elements else "it has no elements")
        case Tag(_, AnyText(), ""):
            return "any text in a tag needs an end"
        case Tag(_, content):
            return _problem(content)
        case TriggeredTags(triggers, tags):
            for tag in tags:
                if not any(trigger and tag.begin.startswith(trigger) for trigger in triggers):
                    return "a tag begins with none of the triggers"
            return _problem(Sequence_(list(tags)))
        case TagsWithSeparator(tags):
            return _problem(Sequence_(list(tags)))
    return None


def _body(grammar: GrammarText, part: Format) -> str:
    match part:
        case ConstString(value):
            return grammar.spelled(value) or '""'
        case JsonSchema(schema):
            return grammar.json(schema, strict=True)
        case Regex(pattern):
            return f"%grammar {json.dumps(['regex', pattern])}"
        case Ebnf(text):
            return f"%grammar {json.dumps(['gbnf', text])}"
        case AnyText():
            return ANY_TEXT
        case Sequence_(elements):
            return grammar.rule("all", _in_order(grammar, elements))
        case Or(elements):
            return grammar.one_of("one", [_body(grammar, one) for one in elements])
        case Tag(begin):
            return f"{grammar.spelled(begin)} {_rest(grammar, part)}"
        case TriggeredTags():
            return _triggered(grammar, part)
        case TagsWithSeparator(tags, separator):
            tag = grammar.one_of("tag", [_body(grammar, one) for one in tags])
            most = 1 if part.stop_after_first else None
            found = repeated(tag, grammar.spelled(separator), 1, most)
            return grammar.rule("tags", found if part.at_least_one else f"({found})?")


def _rest(grammar: GrammarText, tag: Tag) -> str:
    """Write the grammar of a tag after its `begin`."""
    if isinstance(tag.content, AnyText):
        return grammar.up_to(tag.end)
    return _in_order(grammar, [tag.content, ConstString(tag.end)])


def _in_order(grammar: GrammarText, parts: Sequence[Format]) -> str:
    """Write parts in order; a part of variable length ends where the next begins, as in GBNF.

    Any text before a constant, with more than texts behind that, ends where the constant first is.
    """
    bodies: list[str] = []
    others = [n for n, part in enumerate(parts) if not _is_of(part, _TEXTS)]
    begin, last = 0, max(others, default=-1)
    for n, (one, mark) in enumerate(pairwise(parts)):
        if not isinstance(one, AnyText) or not isinstance(mark, ConstString) or not mark.value:
            continue
        if begin <= n <= last - 2:
            bodies += [*_bodies(grammar, parts[begin:n]), grammar.up_to(mark.value)]
            begin = n + 2
    return " ".join([*bodies, *_bodies(grammar, parts[begin:])])


def _bodies(grammar: GrammarText, parts: Sequence[Format]) -> list[str]:
    bodies: list[str] = []
    for is_gbnf, run in groupby(parts, lambda part: _is_of(part, _IN_GBNF)):
        found = list(run)
        if is_gbnf and len(found) > 1 and any(map(_may_be_longer, found)):
            rule = " ".join(_gbnf(grammar, part) for part in found)
            bodies.append(f"%grammar {json.dumps(['gbnf', f'root ::= {rule}'])}")
        else:
            bodies.extend(_body(grammar, part) for part in found)
    return bodies


def _is_of(part: Format, kinds: tuple[type[_Part], ...]) -> bool:
    """Tell whether a format consists only of parts of `kinds`, at any depth."""
    match part:
        case Sequence_(elements) | Or(elements):
            return all(_is_of(one, kinds) for one in elements)
    return isinstance(part, kinds)


def _may_be_longer(part: Format) -> bool:
    """Tell whether a part's texts vary in length without a mark of their end."""
    match part:
        case Regex() | Ebnf() | AnyText():
            return True
        case Sequence_(elements) | Or(elements):
            return any(map(_may_be_longer, elements))
    return False


def _gbnf(grammar: GrammarText, part: Format) -> str:
    """Write a format of literals, patterns and JSON schemas as GBNF."""
    match part:
        case ConstString(value):
            return grammar.spelled(value, quoted_in_gbnf) or '""'
        case JsonSchema(schema):
            return f"%grammar {json.dumps(['json_schema', json.dumps(schema)])}"
        case Regex(pattern):
            return f"%grammar {json.dumps(['regex', pattern])}"
        case Ebnf(text):
            return f"%grammar {json.dumps(['gbnf', text])}"
        case AnyText():
            return ".*"
        case Sequence_(elements) | Or(elements):
            between = " " if isinstance(part, Sequence_) else " | "
            return f"({between.join(_gbnf(grammar, one) for one in elements)})"
    raise ValueError("a tag has no GBNF")


def _triggered(grammar: GrammarText, part: TriggeredTags) -> str:
    found = [
        f"{grammar.up_to(trigger)} {_after(grammar, trigger, part.tags)}"
        for trigger in part.triggers
        if any(tag.begin.startswith(trigger) for tag in part.tags)
    ]
    tag = grammar.one_of("tag", found)
    if part.stop_after_first:
        return tag if part.at_least_one else grammar.one_of("text", [tag, ANY_TEXT])
    return grammar.rule("text", f"({tag}){'+' if part.at_least_one else '*'} {ANY_TEXT}")


def _after(grammar: GrammarText, trigger: str, tags: Sequence[Tag]) -> str:
    """Write the grammar after a trigger: the rest of any tag that begins with the trigger."""
    rests = [
        f"{grammar.spelled(tag.begin.removeprefix(trigger))} {_rest(grammar, tag)}"
        for tag in tags
        if tag.begin.startswith(trigger)
    ]
    return grammar.one_of("rest", rests)
