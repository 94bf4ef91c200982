from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.prompts.tokens.tokenizer import TokenIds
from gateway.sharing.namespaces import Match, PublishedIndex
from gateway.state.records import EVERYONE

SIZE = 2


def ids(numbers: Sequence[int]) -> TokenIds:
    return np.array(numbers, np.int32)


def index_of(*entries: tuple[str, Sequence[int]], has_states: bool = False) -> PublishedIndex:
    index = PublishedIndex()
    found = [(scope, ids(numbers)) for scope, numbers in entries]
    index.renew(SIZE, found, has_states=has_states)
    return index


prefixes = st.lists(
    st.tuples(st.sampled_from([EVERYONE, "g", "h"]), st.lists(st.integers(0, 2), max_size=9)),
    max_size=8,
)


@given(prefixes, st.lists(st.integers(0, 2), max_size=12), st.sampled_from([None, "g", "none"]))
def test_it_finds_what_comparing_with_each_finds(
    published: list[tuple[str, list[int]]], prompt: list[int], group: str | None
) -> None:
    def common(prefix: list[int]) -> int:
        blocks = 0
        while (end := (blocks + 1) * SIZE) <= min(len(prefix), len(prompt)):
            if prefix[:end] != prompt[:end]:
                break
            blocks += 1
        return blocks

    usable = {EVERYONE, group}
    best = max((common(prefix) for scope, prefix in published if scope in usable), default=0)
    found = index_of(*published).match(ids(prompt), group, SIZE)
    assert (None if found is None else found.blocks) == (best or None)
    if found is not None:
        assert found.scope in usable
        assert any(scope == found.scope and common(p) == best for scope, p in published)


@given(prefixes, st.lists(st.integers(0, 2), max_size=12))
def test_of_a_model_with_states_a_prompt_shares_whole_prefixes_alone(
    published: list[tuple[str, list[int]]], prompt: list[int]
) -> None:
    def blocks(prefix: list[int]) -> int:
        whole = prefix[: len(prefix) // SIZE * SIZE]
        return len(whole) // SIZE if prompt[: len(whole)] == whole else 0

    best = max((blocks(prefix) for scope, prefix in published if scope != "h"), default=0)
    found = index_of(*published, has_states=True).match(ids(prompt), "g", SIZE)
    assert (None if found is None else found.blocks) == (best or None)


def test_a_prompt_that_leaves_a_prefix_half_way_shares_that_half_without_states() -> None:
    entries, left = ((EVERYONE, [1, 2, 3, 4]), (EVERYONE, [1, 2])), ids([1, 2, 3, 5])
    for has_states, found in ((False, 1), (True, None)):
        match = index_of(entries[0], has_states=has_states).match(left, None, SIZE)
        assert (match and match.blocks) == found
    match = index_of(*entries, has_states=True).match(left, None, SIZE)
    assert match == Match(EVERYONE, 1), "the shorter one is whole"


def test_large_ids_are_compared_whole() -> None:
    index = index_of((EVERYONE, [1, 2, 70_000, 5]))
    assert index.match(ids([1, 2, 70_000, 5, 9]), None, SIZE) == Match(EVERYONE, 2)
    assert index.match(ids([1, 2, 70_001, 5, 9]), None, SIZE) == Match(EVERYONE, 1)
    assert index.match(ids([1, 2, 70_000 - 65_536, 5]), None, SIZE) == Match(EVERYONE, 1)


def test_of_equals_everyones_is_taken() -> None:
    index = index_of(("g", [1, 2]), (EVERYONE, [1, 2]))
    assert index.match(ids([1, 2, 3]), "g", SIZE) == Match(EVERYONE, 1)


def test_empty_it_matches_nothing_and_renewed_it_forgets() -> None:
    index = PublishedIndex()
    assert index.match(ids([1, 2]), None, SIZE) is None
    index.renew(SIZE, [(EVERYONE, ids([1, 2]))])
    assert index.match(ids([1, 2]), None, SIZE) is not None
    assert index.match(ids([1, 2]), None, SIZE + 1) is None
    index.renew(SIZE, [])
    assert index.match(ids([1, 2]), None, SIZE) is None
