"""Structural tags as grammars.

`structural_parts.py` has the parts that a request may send.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby, pairwise

from gateway.turn_formats.grammar import (
    ANY_TEXT,
    GrammarText,
    embedded,
    quoted_in_gbnf,
    repeated,
    without,
)
from gateway.turn_formats.structural_parts import (
    AnyText,
    ConstString,
    Ebnf,
    Format,
    JsonSchema,
    Or,
    Part,
    Regex,
    Repeated,
    Sequence_,
    Tag,
    TagsWithSeparator,
    TriggeredTags,
)

_TEXTS = (ConstString, Regex, Ebnf, AnyText)
_IN_GBNF = (*_TEXTS, JsonSchema)


def body_of(grammar: GrammarText, part: Format) -> str:
    """Write the grammar of a part as the body of a rule."""
    match part:
        case ConstString(value):
            return grammar.spelled(value) or '""'
        case JsonSchema():
            return grammar.json(part.schema, strict=True)
        case Regex(pattern):
            return embedded("regex", pattern)
        case Ebnf():
            return _embedded(part)
        case AnyText():
            return _text(grammar, _bounds(part))
        case Repeated(content):
            if _is_of(part, _IN_GBNF):
                return embedded("gbnf", f"root ::= {_gbnf(grammar, part)}")
            return grammar.rule("some", f"({body_of(grammar, content)}){_times(part)}")
        case Sequence_(elements):
            return grammar.rule("all", _in_order(grammar, elements))
        case Or(elements):
            return grammar.one_of("one", [body_of(grammar, one) for one in elements])
        case Tag(begin):
            return f"{grammar.spelled(begin)} {_rest(grammar, part)}"
        case TriggeredTags():
            return _triggered(grammar, part)
        case TagsWithSeparator(tags, separator):
            tag = grammar.one_of("tag", [body_of(grammar, one) for one in tags])
            most = 1 if part.stop_after_first else None
            found = repeated(tag, grammar.spelled(separator), 1, most)
            return grammar.rule("tags", found if part.at_least_one else f"({found})?")


def _rest(grammar: GrammarText, tag: Tag) -> str:
    match tag.content:
        case AnyText() as text:
            ways = [grammar.up_to(end, _bounds(text)) for end in tag.ends]
            return ways[0] if len(ways) == 1 else grammar.one_of("rest", ways)
        case TriggeredTags() as tags if all(tag.ends):
            return _triggered(grammar, tags, tag.ends)
    ends = [ConstString(end) for end in tag.ends]
    return _in_order(grammar, [tag.content, ends[0] if len(ends) == 1 else Or([*ends])])


def _in_order(grammar: GrammarText, parts: Sequence[Format]) -> str:
    """Write parts in order. A part of variable length ends where the next part begins, as in GBNF.

    If parts other than texts follow, any text before a constant ends where the constant first
    occurs.
    """
    bodies: list[str] = []
    others = [n for n, part in enumerate(parts) if not _is_of(part, _TEXTS)]
    begin, last = 0, max(others, default=-1)
    for n, (one, mark) in enumerate(pairwise(parts)):
        if not isinstance(one, AnyText) or not isinstance(mark, ConstString) or not mark.value:
            continue
        if begin <= n <= last - 2:
            bodies += [*_bodies(grammar, parts[begin:n]), grammar.up_to(mark.value, _bounds(one))]
            begin = n + 2
    return " ".join([*bodies, *_bodies(grammar, parts[begin:])])


def _bodies(grammar: GrammarText, parts: Sequence[Format]) -> list[str]:
    bodies: list[str] = []
    for is_gbnf, run in groupby(parts, lambda part: _is_of(part, _IN_GBNF)):
        found = list(run)
        if is_gbnf and len(found) > 1 and any(map(_may_be_longer, found)):
            rule = " ".join(_gbnf(grammar, part) for part in found)
            bodies.append(embedded("gbnf", f"root ::= {rule}"))
        else:
            bodies.extend(body_of(grammar, part) for part in found)
    return bodies


def _is_of(part: Format, kinds: tuple[type[Part], ...]) -> bool:
    match part:
        case Sequence_(elements) | Or(elements):
            return all(_is_of(one, kinds) for one in elements)
        case Repeated(content):
            return _is_of(content, kinds)
        case AnyText():
            return not part.is_bounded
        case Ebnf():
            return part.syntax == "ebnf"
    return isinstance(part, kinds)


def _may_be_longer(part: Format) -> bool:
    """Return whether a part's texts vary in length, and no marker shows their end."""
    match part:
        case Regex() | Ebnf() | AnyText() | Repeated():
            return True
        case Sequence_(elements) | Or(elements):
            return any(map(_may_be_longer, elements))
    return False


def _gbnf(grammar: GrammarText, part: Format) -> str:
    match part:
        case ConstString(value):
            return grammar.spelled(value, quoted_in_gbnf) or '""'
        case JsonSchema():
            return embedded("json_schema", json.dumps(part.schema))
        case Regex(pattern):
            return embedded("regex", pattern)
        case Ebnf():
            return _embedded(part)
        case AnyText():
            return ".*"
        case Repeated(content):
            return f"({_gbnf(grammar, content)}){_times(part)}"
        case Sequence_(elements) | Or(elements):
            between = " " if isinstance(part, Sequence_) else " | "
            return f"({between.join(_gbnf(grammar, one) for one in elements)})"
    raise ValueError("a tag has no GBNF")


def _triggered(grammar: GrammarText, part: TriggeredTags, ends: Sequence[str] = ()) -> str:
    """Write the grammar of text with tags, up to and including the first of `ends`."""
    bounds = _without(part.excludes)
    found = [
        f"{grammar.up_to(trigger, bounds)} {_after(grammar, trigger, part.tags)}"
        for trigger in part.triggers
        if any(tag.begin.startswith(trigger) for tag in part.tags)
    ]
    tag = grammar.one_of("tag", found)
    rest = _text(grammar, bounds)
    stop = ""
    if ends:
        rest = grammar.one_of("rest", [grammar.up_to(end, bounds) for end in ends])
        stop = grammar.one_of("end", map(grammar.spelled, ends))
    if not part.at_least_one:
        if part.stop_after_first:
            return grammar.one_of("text", [f"{tag} {stop}", rest])
        return grammar.rule("text", f"({tag})* {rest}")
    first = grammar.one_of("first", [body_of(grammar, one) for one in part.tags])
    return grammar.rule("text", f"{first} {stop if part.stop_after_first else f'({tag})* {rest}'}")


def _after(grammar: GrammarText, trigger: str, tags: Sequence[Tag]) -> str:
    """Write the grammar after a trigger: the rest of any tag that begins with the trigger."""
    rests = [
        f"{grammar.spelled(tag.begin.removeprefix(trigger))} {_rest(grammar, tag)}"
        for tag in tags
        if tag.begin.startswith(trigger)
    ]
    return grammar.one_of("rest", rests)


def _text(grammar: GrammarText, bounds: Sequence[str]) -> str:
    return grammar.rule("TEXT", " & ".join(bounds)) if bounds else ANY_TEXT


def _bounds(text: AnyText) -> list[str]:
    length = [] if text.max_chars is None else [f"/(?s:.{{0,{text.max_chars}}})/"]
    return [*length, *_without(text.excludes)]


def _without(excluded: Sequence[str]) -> list[str]:
    return [ANY_TEXT, *map(without, excluded)] if excluded else []


def _embedded(part: Ebnf) -> str:
    return embedded("gbnf" if part.syntax == "ebnf" else "clients_lark", part.grammar)


def _times(part: Repeated) -> str:
    least, most = part.bounds
    return f"{{{least},{'' if most is None else most}}}"
