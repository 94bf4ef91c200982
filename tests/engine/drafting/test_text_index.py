"""The index, compared with a plain search of the whole text."""

from __future__ import annotations

import numpy as np
import pytest

from engine.drafting import text_index
from engine.drafting.text_index import LONGEST, MOST_TRIED, RUN, TextIndex
from prefix_cache.hashing import TokenIds


def text_of(length: int, kinds: int, seed: int) -> TokenIds:
    return np.random.default_rng(seed).integers(0, kinds, length, np.int32)


def longest(text: TokenIds, end: int) -> int:
    """Return the length of the longest earlier match of the tokens before `end`."""
    best = 0
    for place in range(1, end):
        size = min(place, LONGEST)
        length = 0
        while length < size and text[place - 1 - length] == text[end - 1 - length]:
            length += 1
        best = max(best, length)
    return best if best >= RUN else 0


@pytest.mark.parametrize("kinds", [2, 7, 60, 100_000])
@pytest.mark.parametrize("is_at_once", [True, False])
def test_the_longest_match_is_found(
    kinds: int, is_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_index, "MOST_TRIED", 1000)
    text = text_of(400, kinds, seed=kinds)
    index = TextIndex(text)
    for end in range(3, len(text)):
        if not is_at_once or end % 97 == 0:
            index.extend(end - 1)
        if not is_at_once or end % 97 == 0:
            found = index.find(text.data, end)
            assert (found[1] if found else 0) == longest(text, end)
            if found:
                place, length = found
                assert text[place - length : place].tolist() == text[end - length : end].tolist()


def test_of_matches_alike_the_latest_counts() -> None:
    text = np.array([1, 2, 5, 0, 1, 2, 6, 0, 1, 2], np.int32)
    index = TextIndex(text)
    index.extend(9)
    assert index.find(text.data, 10) == (6, 3)  # finds "0 1 2" rather than an earlier "1 2"


def test_a_search_compares_a_bounded_number_of_places() -> None:
    rare = [9, 8, 1, 2]
    text = np.array([*rare, 7, *[1, 2, 3] * (2 * MOST_TRIED), *rare], np.int32)
    index = TextIndex(text)
    index.extend(len(text) - 1)
    found = index.find(text.data, len(text))
    assert found is not None
    assert found[1] == RUN, "the longer match is too far back"
    near = np.array([*rare, 7, *[1, 2, 3] * (MOST_TRIED // 2), *rare], np.int32)
    index = TextIndex(near)
    index.extend(len(near) - 1)
    assert index.find(near.data, len(near)) == (4, 4), "the control: this one is near"


def test_what_left_the_window_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_index, "WINDOW", 64)
    text = np.arange(400, dtype=np.int32)
    text[200:204] = text[100:104]  # a copy of the text 100 places earlier
    text[300:304] = text[260:264]  # a copy of the text 40 places earlier
    for step in (1, 90):
        index = TextIndex(text)
        for end in range(2, 204, step):
            index.extend(end)
        index.extend(203)
        assert index.find(text.data, 204) is None
        index.extend(303)
        assert index.find(text.data, 304) == (264, 4)


def test_a_foreign_text_is_searched() -> None:
    text, tokens = np.array([4, 5, 6, 7], np.int32), np.array([0, 5, 6], np.int32)
    index = TextIndex(text)
    index.extend(4)
    assert index.find(tokens.data, 3) == (3, 2)
    assert index.find(tokens.data, 1) is None
    assert index.find(tokens.data, 2) is None


def test_texts_of_hardly_any_tokens() -> None:
    for length in range(4):
        text = np.zeros(length, np.int32)
        index = TextIndex(text)
        index.extend(max(length - 1, 0))
        assert index.find(text.data, length) == ((2, 2) if length == 3 else None)
