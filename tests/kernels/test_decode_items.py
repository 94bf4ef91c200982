"""Into which parts the contexts of decode rows are cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.decode_items import KEY_STEP, MIN_KEYS, TARGET_ITEMS, cut, most_items


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 140_000), min_size=1, max_size=300))
def test_every_key_is_in_one_item_of_its_row(contexts: list[int]) -> None:
    items = cut(np.array(contexts))
    [keys] = items.keys.tolist()
    assert len(items.rows) == len(items.starts) == items.row_items[-1] <= most_items(len(contexts))
    for row, context in enumerate(contexts):
        own = slice(items.row_items[row], items.row_items[row + 1])
        assert (items.rows[own] == row).all()
        assert items.starts[own].tolist() == list(range(0, context, keys))
        assert len(items.starts[own]) <= TARGET_ITEMS


@pytest.mark.parametrize(
    ("contexts", "keys", "items"),
    [
        ([1], MIN_KEYS, 1),
        ([1_024], MIN_KEYS, 4),
        ([131_072], 1_024, 128),
        ([8_192] * 64, 4_096, 128),
        ([1_024] * 256, 2_048, 256),
        ([128] * 63 + [32_768], 320, 63 + 103),
    ],
)
def test_enough_to_fill_the_device_and_none_too_short(
    contexts: list[int], keys: int, items: int
) -> None:
    cuts = cut(np.array(contexts))
    assert cuts.keys.tolist() == [keys]
    assert len(cuts.rows) == items


def test_items_are_whole_tiles() -> None:
    for total in range(1, 3_000_000, 9_973):
        assert cut(np.array([total])).keys[0] % KEY_STEP == 0


def test_no_rows_give_no_items() -> None:
    items = cut(np.zeros(0, np.int64))
    assert (len(items.rows), items.row_items.tolist()) == (0, [0])
