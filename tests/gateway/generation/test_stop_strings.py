from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.generation.stop_strings import StopScanner
from tests.gateway.support.plain_search import search

TEXTS = st.text("ab\N{GRINNING FACE}", max_size=30)
STOPS = st.lists(st.text("ab\N{GRINNING FACE}", min_size=1, max_size=5), max_size=4)
CUTS = st.lists(st.integers(0, 30), max_size=10)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


def scan(pieces: list[str], stops: list[str], *, include: bool) -> tuple[str, str | None]:
    scanner = StopScanner(tuple(stops), include_stop=include)
    shown = ""
    for piece in pieces:
        shown += scanner.feed(piece)
        if scanner.stopped_by is not None:
            return shown, scanner.stopped_by
    return shown + scanner.flush(), None


@given(TEXTS, STOPS, CUTS, st.booleans())
def test_how_the_text_is_cut_does_not_matter(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    found = scan(pieces_of(text, cuts), stops, include=include)
    assert found == search(text, stops, include=include)


@given(TEXTS, STOPS)
def test_no_more_is_held_back_than_could_begin_a_stop_string(text: str, stops: list[str]) -> None:
    scanner = StopScanner(tuple(stops))
    shown = ""
    for end, char in enumerate(text, start=1):
        shown += scanner.feed(char)
        if scanner.stopped_by is not None:
            return
        held = text[len(shown) : end]
        assert shown + held == text[:end]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_of_two_that_end_together_the_longer_is_cut_off() -> None:
    assert scan(["xab"], ["b", "ab"], include=False) == ("x", "ab")
    assert scan(["xa", "b"], ["b", "ab"], include=False) == ("x", "ab")


def test_without_stop_strings_nothing_is_held_back() -> None:
    scanner = StopScanner(())
    assert scanner.feed("anything") == "anything"
    assert scanner.flush() == ""
