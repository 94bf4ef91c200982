"""The index of a text, compared with a plain search of the whole text."""

from __future__ import annotations

import numpy as np
import pytest

from engine.drafting.text_index import LONGEST, NEAR, RUNS, TextIndex
from prefix_cache.hashing import TokenIds


def text_of(length: int, kinds: int, seed: int) -> TokenIds:
    return np.random.default_rng(seed).integers(0, kinds, length, np.int32)


def matched(text: TokenIds, place: int, end: int) -> int:
    """Count the tokens before `place` that equal the tokens before `end`, up to `LONGEST`."""
    length = 0
    while length < min(place, LONGEST) and text[place - 1 - length] == text[end - 1 - length]:
        length += 1
    return length


def expected(text: TokenIds, end: int) -> int | None:
    """Return the last position before `end` that is preceded by the longest matching run of an
    indexed length.
    """
    runs = [
        max((run for run in RUNS if run <= matched(text, p, end)), default=0) for p in range(1, end)
    ]
    if not any(runs):
        return None
    return max(place for place, run in enumerate(runs, 1) if run == max(runs))


@pytest.mark.parametrize("kinds", [2, 7, 60])
@pytest.mark.parametrize("step", [1, 97])
def test_the_latest_place_after_the_longest_run_is_found(kinds: int, step: int) -> None:
    text = text_of(400, kinds, seed=kinds)
    index, num_found = TextIndex(text), 0
    for end in range(2, len(text), step):
        index.extend(end - 1)
        found, place = index.find(text.data, end), expected(text, end)
        if found is not None:
            assert 1 <= found[1] <= matched(text, found[0], end)
            num_found += found[0] == place  # may differ, since a hash collision can hide a position
        else:
            assert place is None or kinds > 7
            num_found += place is None
    assert num_found > 0.7 * len(range(2, len(text), step))


@pytest.mark.parametrize("kinds", [2, 7, 60, 100_000])
def test_places_indexed_at_once_are_those_of_one_by_one(kinds: int) -> None:
    text = text_of(500, kinds, seed=1)
    alone, together = TextIndex(text), TextIndex(text)
    for end in range(501):
        alone.extend(end)
        if end in (1, 2, 30, 31, 200, 213, 500):
            together.extend(end)
            assert (alone._arrays == together._arrays).all()
    alone.extend(7)
    assert alone.end == 500, "what is indexed stays"


def test_of_matches_alike_the_latest_counts() -> None:
    text = np.array([0, 0, 1, 2, 5, 9, 0, 1, 2, 6, 9, 0, 1, 2], np.int32)
    index = TextIndex(text)
    index.extend(13)
    assert index.find(text.data, 14) == (9, 4)
    assert index.find(np.array([7, 0, 1, 2], np.int32).data, 4) == (9, 3)


def test_a_long_match_is_preferred_to_a_late_one() -> None:
    rare = [9, 8, 1, 2]
    text = np.array([*rare, 7, *[1, 2, 3] * 40, *rare], np.int32)
    index = TextIndex(text)
    index.extend(len(text) - 1)
    assert index.find(text.data, len(text)) == (4, 4)


@pytest.mark.parametrize("kinds", [2, 7, 60, 1 << 10])
@pytest.mark.parametrize("length", [1, 2, 4])
def test_the_first_place_near_a_start_is_found(kinds: int, length: int) -> None:
    text = text_of(300, kinds, seed=kinds)
    text[1::3] <<= 8  # so that some tokens' bytes also occur across two tokens
    index, num_found = TextIndex(text), 0
    for end in range(length, len(text)):
        index.extend(end - 1)
        start = 5 * end // 9
        places = range(max(start, length), min(start + NEAR, index.end) + 1)
        equal = [one for one in places if matched(text, one, end) >= length]
        place = index.find_near(text.data, end, start, length)
        assert place == next(iter(equal), None)
        num_found += place is not None
    assert num_found or kinds > 2


def test_bytes_across_two_tokens_are_no_token() -> None:
    text = np.array([256, 0, 5], np.int32)
    index = TextIndex(text)
    index.extend(3)
    for token, place in ((1, None), (256, 1), (0, 2)):
        assert index.find_near(np.array([token], np.int32).data, 1, 0, 1) == place


def test_a_foreign_text_is_searched() -> None:
    text, tokens = np.array([4, 5, 6, 7], np.int32), np.array([0, 5, 6], np.int32)
    index = TextIndex(text)
    index.extend(4)
    assert index.find(tokens.data, 3) == (3, 2)
    assert index.find(tokens.data, 2) == (2, 1)
    assert index.find(tokens.data, 1) is None
    assert index.find(tokens.data, 0) is None


def test_texts_of_hardly_any_tokens() -> None:
    for length in range(4):
        text = np.zeros(length, np.int32)
        index = TextIndex(text)
        index.extend(max(length - 1, 0))
        assert index.find(text.data, length) == ((length - 1, length - 1) if length > 1 else None)


def test_the_index_is_bounded() -> None:
    assert TextIndex(np.zeros(1 << 20, np.int32))._arrays.nbytes < 800_000
