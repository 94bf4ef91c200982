"""The conversion of string keywords to ones that llguidance can follow together.

    {"pattern": "^$|^(\\\\S+\\\\s+){0,99}\\\\S+$", "minLength": 1, "maxLength": 5000}

If a minimum length only rules out whole alternatives of the pattern, these are removed, and no
length is counted. If a maximum length cannot be counted, repetitions in the pattern are reduced
until no text is longer. Some of the long texts are then not allowed.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.grammars.schemas.json_value import JsonObject
from engine.grammars.schemas.lengths import LENGTHS, CanBeHeld
from engine.grammars.syntax.expression import Expression, UnsoundGrammar
from engine.grammars.syntax.json_text import without_wide_controls
from engine.grammars.syntax.lark import regex_of
from engine.grammars.syntax.patterns.anchors import containing_text
from engine.grammars.syntax.patterns.shortened import at_least, shortened


def spelled(texts: Expression) -> str:
    """Return a pattern for these texts, in llguidance's syntax for patterns in JSON schemas."""
    return f"^{regex_of(without_wide_controls(texts))}$"


def with_followable_texts(
    found: JsonObject, pattern: str | None, can_be_held: CanBeHeld, *, is_lenient: bool
) -> JsonObject:
    """Return `found` with its string keywords changed until they pass `can_be_held`.

    `pattern` is the pattern as the client wrote it. If `is_lenient`, keywords that fail the test
    are left out: first the lengths, then all string keywords. If not, raises UnsoundGrammar.
    """
    if not ("pattern" in found or ("format" in found and LENGTHS & found.keys())):
        return found
    for one in _ways(found, pattern if "pattern" in found else None):
        if can_be_held(one):
            return one
    if not is_lenient:
        raise UnsoundGrammar("a pattern and a length that are too large together are not supported")
    free = _without(found, *LENGTHS)
    return free if can_be_held(free) else _without(free, "pattern", "format")


def _ways(found: JsonObject, pattern: str | None) -> Iterator[JsonObject]:
    if pattern is None:
        yield found
        return
    least, most = found.get("minLength"), found.get("maxLength")
    texts = containing_text(pattern)
    long_enough = at_least(texts, least) if isinstance(least, int) else None
    if long_enough is not None:
        found, texts = _with_pattern(_without(found, "minLength"), long_enough), long_enough
    yield found
    short = shortened(texts, most) if isinstance(most, int) else None
    if short is not None:
        yield _with_pattern(_without(found, "maxLength"), short)


def _with_pattern(found: JsonObject, texts: Expression) -> JsonObject:
    return found | {"pattern": spelled(texts)}


def _without(found: JsonObject, *names: str) -> JsonObject:
    return {name: value for name, value in found.items() if name not in names}
