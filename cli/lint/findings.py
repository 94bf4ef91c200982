"""The findings of lint: volatile text in the stable prefix, and differences of two requests.

The stable prefix of a request is its tools, its system texts, and all messages but the last. The
last message is new in every request, so volatile text in it costs nothing. A token is assumed to
have four characters.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from cli.lint.request_parts import RequestPart, either, parts_of
from gateway.diagnosis.advice import ADVICE
from gateway.diagnosis.comparison import EXCERPT, first_difference
from gateway.diagnosis.volatile import kind_at, volatile_in
from gateway.prompts.pipeline.canonical import canonical_tool

_CHARACTERS = 4
# maximum number of findings per part, since only text before the first finding can be cached
_PER_PART = 3
_FIELDS = ("system", "instructions", "prompt")  # fields that are a text or a list of texts
_SORT = "Encode tools with sorted keys: as they are, they differ from the other request in order."


class LintFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Text that keeps all later text uncached. `character` is its position in the part."""

    part: str
    character: int
    what: str  # kind of the change: "date", "reordered", "system_changed", ...
    excerpt: str
    advice: str


def lint(request: Mapping[str, Any], block_size: int) -> list[LintFinding]:
    """Find volatile text in the stable prefix, or a prompt too short to be cached."""
    parts = parts_of(request)
    stable = parts[: _first_new(parts)]
    found = [finding for part in stable for finding in _volatile(part)]
    size = sum(len(part.text) for part in parts)
    if size < block_size * _CHARACTERS:
        found.append(_finding(parts[0].name if parts else "", "", 0, "below_minimum"))
    return found


def lint_against(request: Mapping[str, Any], other: Mapping[str, Any]) -> list[LintFinding]:
    """Find the first difference from an earlier request, after which all text stays uncached.

    The last messages are meant to differ, as questions about one document do. So only volatile text
    is found in them.
    """
    salts = [either(one, "cacheSalt") for one in (request, other)]
    if request.get("model") != other.get("model"):
        return [_finding("model", str(request.get("model")), 0, "model_changed")]
    if salts[0] != salts[1]:
        return [_finding("cache_salt", "", 0, "salt_changed")]
    parts, others = parts_of(request), parts_of(other)
    tools = _tools(parts, others)
    if tools is not None:
        return [tools]
    new = parts[_first_new(parts) :]
    for part, before in zip(_no_tools(parts), _no_tools(others), strict=False):
        if (_place(part), part.text) != (_place(before), before.text):
            changed = _changed(part, before)
            is_question = part in new and changed.what == "messages_changed"
            return [] if is_question else [changed]
    return []


def _first_new(parts: Sequence[RequestPart]) -> int:
    """Find the index of the last message's first part. A message may have several."""
    places = [place for place, part in enumerate(parts) if part.kind == "messages"]
    if not places:
        return len(parts)
    last = parts[places[-1]].name.partition(".")[0]
    return next(place for place in places if parts[place].name.partition(".")[0] == last)


def _place(part: RequestPart) -> str:
    """Name the message or field of a part, whose text may be a string or the texts of a list.

    Claude Code sends a message as a list only while it has a breakpoint.
    """
    name = part.name.partition(".")[0]
    return name.partition("[")[0] if name.startswith(_FIELDS) else name


def _volatile(part: RequestPart) -> Iterator[LintFinding]:
    for number, one in enumerate(volatile_in(part.text)):
        if number == _PER_PART:
            return
        yield _finding(part.name, part.text, one.start, one.kind)


def _tools(parts: Sequence[RequestPart], others: Sequence[RequestPart]) -> LintFinding | None:
    now, before = ([one for one in side if one.kind == "tools"] for side in (parts, others))
    names, earlier = ([one.tool or "" for one in side] for side in (now, before))
    if names != earlier:
        place = next(
            at for at, pair in enumerate(zip_longest(names, earlier)) if len(set(pair)) > 1
        )
        name, text = (now[place].name, now[place].text) if place < len(now) else ("tools", "")
        what = "added"
        if sorted(names) == sorted(earlier):
            what = "reordered"
        elif set(names) < set(earlier):
            what = "removed"
        return _finding(name, text, 0, what)
    for one, other in zip(now, before, strict=True):
        if one.text != other.text:
            at = first_difference(other.text, one.text)
            if _canonical(one) == _canonical(other):
                return _finding(one.name, one.text, at, "keys_reordered", _SORT)
            return _finding(one.name, one.text, at, "tools_changed")
    return None


def _canonical(part: RequestPart) -> str:
    return json.dumps(canonical_tool(json.loads(part.text)), ensure_ascii=False)


def _no_tools(parts: Sequence[RequestPart]) -> list[RequestPart]:
    return [part for part in parts if part.kind != "tools"]


def _changed(part: RequestPart, before: RequestPart) -> LintFinding:
    at = first_difference(before.text, part.text)
    kind = kind_at(part.text, at)
    is_same = kind is not None and kind == kind_at(before.text, at)
    return _finding(part.name, part.text, at, str(kind) if is_same else f"{part.kind}_changed")


def _finding(part: str, text: str, at: int, what: str, advice: str | None = None) -> LintFinding:
    excerpt = text[max(0, at - EXCERPT) : at + EXCERPT]
    return LintFinding(
        part=part, character=at, what=what, excerpt=excerpt, advice=advice or ADVICE[what]
    )
