"""The parts of a prompt by the names of its request, and the search for a character's part.

A template decides where in the prompt the parts are, and may trim them, so they are searched for in
the prompt's own text: tools by their names and the system's texts from the beginning, messages from
the end. A part that is not found is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

PartKind = Literal["tools", "system", "messages"]
_ANCHOR = 64  # characters by which to find a text that the template changed


class PromptPart(NamedTuple):
    """A part of a prompt; `text` is the part's text, or the name of a tool."""

    name: str  # its field in the request: "tools[2]", "system[0]", "messages[3]"
    kind: PartKind
    text: str


class Within(NamedTuple):
    """The place of a character: in a part, right after a part, or in template text before it."""

    part: PromptPart | None
    side: Literal["inside", "after", "before"]


class _Span(NamedTuple):
    start: int
    end: int
    part: PromptPart


def part_at(parts: Sequence[PromptPart], prompt: str, at: int) -> Within:
    """Find the part that contains character `at` of `prompt`, or else the next part."""
    spans = sorted(_spans(parts, prompt), key=lambda span: span.start)
    for span in reversed(spans):
        if span.start <= at < span.end:
            return Within(span.part, "inside")
    for span in spans:
        if at == span.end:
            return Within(span.part, "after")
    return Within(next((span.part for span in spans if span.start > at), None), "before")


def _spans(parts: Sequence[PromptPart], prompt: str) -> Iterator[_Span]:
    by_kind = {kind: [part for part in parts if part.kind == kind] for kind in _KINDS}
    yield from _tools(by_kind["tools"], prompt)
    yield from _forward(by_kind["system"], prompt)
    yield from _backward(reversed(by_kind["messages"]), prompt)


_KINDS: tuple[PartKind, ...] = ("tools", "system", "messages")


def _tools(tools: Iterable[PromptPart], prompt: str) -> Iterator[_Span]:
    """Find the tools' spans; a tool ends where the next begins, the last tool with its line."""
    found, cursor = list[tuple[int, PromptPart]](), 0
    for tool in tools:
        at = prompt.find(f'"{tool.text}"', cursor)
        if at >= 0:
            cursor = at + len(tool.text) + 2
            found.append((at, tool))
    for (at, tool), (following, _) in pairwise(found):
        yield _Span(at, following - 1, tool)
    if found:
        at, tool = found[-1]
        end = prompt.find("\n", at)
        yield _Span(at, len(prompt) if end < 0 else end, tool)


def _forward(parts: Iterable[PromptPart], prompt: str) -> Iterator[_Span]:
    cursor = 0
    for part in parts:
        text = part.text.strip()
        for length in (len(text), _ANCHOR):
            at = prompt.find(text[:length], cursor) if text else -1
            if at >= 0:
                cursor = at + len(text[:length])
                yield _Span(at, cursor, part)
                break


def _backward(parts: Iterable[PromptPart], prompt: str) -> Iterator[_Span]:
    # A mirrored prompt is searched, since `str.rfind` takes the product of both lengths.
    mirrored, passed = prompt[::-1], 0
    for part in parts:
        text = part.text.strip()
        for sought in (text, text[:_ANCHOR]):
            at = mirrored.find(sought[::-1], passed) if text else -1
            if at >= 0:
                passed = at + len(sought)
                begin = len(prompt) - passed
                yield _Span(begin, begin + len(sought), part)
                break
