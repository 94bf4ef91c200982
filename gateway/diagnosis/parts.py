"""The parts of a prompt, named as in its request, and the search for a character's part.

A template decides where the parts are in the prompt, and may trim them. The parts are therefore
searched for in the prompt's own text. Tools (by their names) and the system's texts are searched
from the beginning, and messages from the end. A part that is not found is skipped. A search in vain
reads the whole prompt, and a request may have thousands of missing parts. The search therefore has
a limit.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

PartKind = Literal["tools", "system", "messages"]
_ANCHOR = 64  # number of first or last characters by which to find a text that the template changed
_FIND = 256  # fixed cost of a search, as a number of characters that are read in the same time
_STEP = 1 << 18
# maximum number of characters read in vain: a second of reading, two seconds if all text nearly
# matches
_MOST_IN_VAIN = 1 << 28
# number of characters that are read in the time that tokenising one character takes
_PER_CHARACTER = 64


class PromptPart(NamedTuple):
    """A part of a prompt. `text` is the part's text, or the name of a tool."""

    name: str  # the request's field: "tools[2]", "system[0]", "messages[3]"
    kind: PartKind
    text: str


class Within(NamedTuple):
    """The place of a character: in a part, right after a part, or in text before a part."""

    part: PromptPart | None
    side: Literal["inside", "after", "before"]


class _Span(NamedTuple):
    start: int
    end: int
    part: PromptPart


def part_at(
    parts: Sequence[PromptPart], prompt: str, at: int
) -> Generator[int, None, Within | None]:
    """Find the part that contains character `at` of `prompt`, or else the next part.

    Yields the work of the generator's next step, in units of one tokenised character. Returns None
    beyond the limit of the search (`_MOST_IN_VAIN`).
    """
    search = _Search(prompt)
    by_kind = {kind: [part for part in parts if part.kind == kind] for kind in _KINDS}
    spans = [
        *(yield from _tools(by_kind["tools"], search)),
        *(yield from _forward(by_kind["system"], search)),
        *(yield from _backward(reversed(by_kind["messages"]), search)),
    ]
    return None if search.is_over else _within(spans, at)


def _within(spans: list[_Span], at: int) -> Within:
    spans.sort(key=lambda span: span.start)
    for span in reversed(spans):
        if span.start <= at < span.end:
            return Within(span.part, "inside")
    for span in spans:
        if at == span.end:
            return Within(span.part, "after")
    return Within(next((span.part for span in spans if span.start > at), None), "before")


@dataclass(slots=True)
class _Search:
    prompt: str
    read: int = 0
    read_in_vain: int = 0  # characters read so far by searches that found nothing

    def find(self, text: str, sought: str, start: int) -> int:
        """Find `sought` in `text`, the prompt or the reversed prompt, as `str.find` does."""
        at = text.find(sought, start)
        read = (len(text) if at < 0 else at) - start
        self.read += read + _FIND
        self.read_in_vain += read if at < 0 else 0
        return at

    @property
    def is_over(self) -> bool:
        return self.read_in_vain > _MOST_IN_VAIN

    def pause(self) -> Generator[int]:
        if self.read >= _STEP:
            self.read = 0
            yield min(len(self.prompt), _STEP) // _PER_CHARACTER


_KINDS: tuple[PartKind, ...] = ("tools", "system", "messages")


_Spans = Generator[int, None, list[_Span]]


def _tools(tools: Iterable[PromptPart], search: _Search) -> _Spans:
    """Find the tools' spans. A tool ends where the next tool begins, or else at the line's end."""
    prompt, spans = search.prompt, list[_Span]()
    found, cursor = list[tuple[int, PromptPart]](), 0
    for tool in tools:
        at = -1 if search.is_over else search.find(prompt, f'"{tool.text}"', cursor)
        if at >= 0:
            cursor = at + len(tool.text) + 2
            found.append((at, tool))
        yield from search.pause()
    for (at, tool), (following, _) in pairwise(found):
        spans.append(_Span(at, following - 1, tool))
    if found:
        at, tool = found[-1]
        end = prompt.find("\n", at)
        spans.append(_Span(at, len(prompt) if end < 0 else end, tool))
    return spans


def _forward(parts: Iterable[PromptPart], search: _Search) -> _Spans:
    spans, cursor = list[_Span](), 0
    for part in parts:
        text = part.text.strip()
        for length in (len(text), _ANCHOR):
            is_sought = text and not search.is_over
            at = search.find(search.prompt, text[:length], cursor) if is_sought else -1
            if at >= 0:
                cursor = at + len(text[:length])
                spans.append(_Span(at, cursor, part))
                break
        yield from search.pause()
    return spans


def _backward(parts: Iterable[PromptPart], search: _Search) -> _Spans:
    # The reversed prompt is searched, because the time of `str.rfind` grows with the product of
    # both lengths.
    mirrored, passed, spans = search.prompt[::-1], 0, list[_Span]()
    for part in parts:
        text = part.text.strip()
        for sought in (text, text[:_ANCHOR]):
            is_sought = text and not search.is_over
            at = search.find(mirrored, sought[::-1], passed) if is_sought else -1
            if at >= 0:
                passed = at + len(sought)
                begin = len(mirrored) - passed
                spans.append(_Span(begin, begin + len(sought), part))
                break
        yield from search.pause()
    return spans
