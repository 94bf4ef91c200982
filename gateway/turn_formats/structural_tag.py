"""Structural tags: texts with parts that follow schemas, as vLLM's and SGLang's clients send them.

Clients send the older form, `structures` with `triggers`, or the newer form, the tree `format`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from gateway.turn_formats.grammar import GrammarText
from gateway.turn_formats.structural_grammar import body_of
from gateway.turn_formats.structural_parts import (
    AnyText,
    Format,
    JsonSchema,
    Or,
    Repeated,
    Sequence_,
    Tag,
    TagsWithSeparator,
    TriggeredTags,
)

MAX_PARTS = 1024  # limits the comparisons of triggers with tags


class _Structure(Struct, frozen=True, forbid_unknown_fields=True):
    begin: str
    schema: dict[str, Any]
    end: str


class StructuralTag(Struct, frozen=True):
    """The structural tag of a whole answer: `format` if set, else any text with `structures`."""

    format: Format | None = None
    structures: list[_Structure] = field(default_factory=list)
    triggers: list[str] = field(default_factory=list)

    def problem(self) -> str | None:
        """Return the reason why the server refuses the structural tag, or None."""
        tree = self._tree()
        if _count(tree) > MAX_PARTS:
            return f"it has more than {MAX_PARTS} parts and triggers"
        return _problem(tree)

    def lark(self, special_tokens: Mapping[str, int]) -> str:
        """Write the structural tag's Lark grammar. `special_tokens` are as in `grammar.py`."""
        grammar = GrammarText(special_tokens, prefix="tag_")
        return grammar.source(body_of(grammar, self._tree()))

    def _tree(self) -> Format:
        if self.format is not None:
            return self.format
        tags = [Tag(one.begin, JsonSchema(one.schema), one.end) for one in self.structures]
        return TriggeredTags(self.triggers, tags)


def _count(part: Format) -> int:
    match part:
        case Sequence_(elements) | Or(elements):
            return 1 + sum(map(_count, elements))
        case Tag(_, content):
            return len(part.ends) + _count(content)
        case Repeated(content):
            return 1 + _count(content)
        case TriggeredTags(triggers, tags):
            return 1 + len(triggers) + len(part.excludes) + sum(map(_count, tags))
        case TagsWithSeparator(tags):
            return 1 + sum(map(_count, tags))
        case AnyText(excludes):
            return 1 + len(excludes)
    return 1


def _problem(part: Format) -> str | None:
    match part:
        case Sequence_(elements) | Or(elements):
            found = map(_problem, elements)
            return next(filter(None, found), None if elements else "it has no elements")
        case Tag(_, content):
            if not part.ends or (not all(part.ends) and isinstance(content, AnyText)):
                return "any text in a tag needs an end"
            return _problem(content)
        case Repeated(content):
            least, most = part.bounds
            if most is not None and most < least:
                return "a repetition has a `max` below its `min`"
            return _problem(content)
        case AnyText(excludes) if not all(excludes):
            return "an empty text cannot be excluded"
        case TriggeredTags(triggers, tags):
            if not all(part.excludes):
                return "an empty text cannot be excluded"
            for tag in tags:
                if not any(trigger and tag.begin.startswith(trigger) for trigger in triggers):
                    return "a tag begins with none of the triggers"
            return _problem(Sequence_(list(tags)))
        case TagsWithSeparator(tags):
            return _problem(Sequence_(list(tags)))
    return None
