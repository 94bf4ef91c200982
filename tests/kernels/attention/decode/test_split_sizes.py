"""The sizes of splits in decode attention: they cover every key, and no other sizes are faster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention.decode.split_sizes import (
    SplitSizes,
    best_split,
    possible_splits,
    split_sizes,
)
from kernels.attention.tuning import DecodeTuning, decode_tuning, shared_tuning
from tests.doubles.engine.device.shared_prefix import with_units
from tests.doubles.kernels.splits_checker import check_units
from tests.examples import examples
from tests.kernels.cases import Geometry, make_case
from tests.kernels.test_shared_prefix import grow

OWN, SHARED = decode_tuning(128, torch.bfloat16), shared_tuning(128, torch.bfloat16)
KV_HEADS = 8


def cut(lengths: list[int]) -> tuple[int, int]:
    return best_split(np.array(lengths, np.int32), OWN, KV_HEADS)


@examples(4)
@given(
    lengths=st.lists(st.integers(0, 131_072) | st.integers(0, 300), max_size=256),
    kv_heads=st.sampled_from([1, 2, 8, 32]),
    tuning=st.sampled_from([OWN, SHARED, decode_tuning(16, torch.float32)]),
)
def test_units_hold_all_keys_and_are_no_more_than_a_launch_has(
    lengths: list[int], kv_heads: int, tuning: DecodeTuning
) -> None:
    array = np.array(lengths, np.int32)
    chosen = best_split(array, tuning, kv_heads)
    tiles = -(-array[array > 0] // tuning.tile)
    sizes, splits = possible_splits(tiles, tuning, kv_heads)
    keys, more = (sizes * tuning.tile).tolist(), (splits - len(tiles)).tolist()
    possible = [(int(size), int(count)) for size, count in zip(keys, more, strict=True)]
    assert chosen in possible
    for cut in possible:
        check_units(lengths, cut, tuning, kv_heads)


def test_the_check_itself_sees_keys_that_are_left_out() -> None:
    """Detect left-out keys (positive control): sizes for shorter rows, and more splits than a
    launch has.
    """
    keys, more = cut([8_000] * 4)
    assert check_units([8_000] * 4, (keys, more), OWN, KV_HEADS)
    with pytest.raises(AssertionError):
        check_units([9_000] * 4, (keys, more), OWN, KV_HEADS)
    with pytest.raises(AssertionError):
        check_units([131_072], (128, 1_023), OWN, KV_HEADS)


@pytest.mark.parametrize(
    ("rows", "context", "splits_each"),
    [
        (1, 32_000, 63),
        (1, 100_000, 66),
        (2, 8_000, 32),
        (4, 8_000, 16),
        (8, 8_000, 8),
        (16, 8_000, 4),
        (32, 1_100, 2),
        (32, 2_030, 2),
        (48, 2_030, 1),
        (64, 2_900, 1),
        (96, 2_030, 2),
        (128, 2_030, 1),
        (256, 1_100, 1),
    ],
)
def test_equal_rows_are_cut_as_was_fastest(rows: int, context: int, splits_each: int) -> None:
    """Compare the splits with the fastest ones, measured in whole steps of an 8B model on an H200.

    docs/lab/performance-log.md has the measurements.
    """
    keys, more = cut([context] * rows)
    assert more == rows * (splits_each - 1)
    assert -(-context // keys) == splits_each


@pytest.mark.parametrize(
    ("groups", "prefix", "splits_each"), [(16, 4_096, 3), (16, 2_048, 3), (4, 4_096, 10)]
)
def test_shared_prefixes_are_cut_for_fewer_programs_at_once(
    groups: int, prefix: int, splits_each: int
) -> None:
    keys, more = best_split(np.array([prefix] * groups, np.int32), SHARED, KV_HEADS)
    assert (-(-prefix // keys), more) == (splits_each, groups * (splits_each - 1))


def test_a_long_row_among_short_ones_is_cut_and_they_are_not() -> None:
    keys, more = cut([100_000] + [400] * 63)
    assert 400 <= keys < 100_000 // 16
    assert more == -(-100_000 // keys) - 1


def test_rows_of_no_keys_are_not_cut() -> None:
    assert cut([]) == cut([0, 0]) == cut([1]) == (OWN.least_keys, 0)


def test_a_pool_and_one_layer_of_it_are_cut_alike() -> None:
    pool = torch.zeros((3, 2, 2, 4, 16, 128), dtype=torch.bfloat16)
    expected = SplitSizes(OWN, SHARED, 4)
    assert split_sizes(pool) == split_sizes(pool[:, 1]) == expected


def test_levels_come_first_and_then_what_rows_read_alone() -> None:
    sizes = SplitSizes(OWN, SHARED, KV_HEADS)
    own, shared = np.array([2_030] * 32, np.int32), np.array([4_096] * 16, np.int32)
    splits = sizes.cut(own, shared)
    assert splits.dtype == np.int32
    assert splits.tolist() == [
        list(best_split(shared, SHARED, KV_HEADS)),
        list(best_split(own, OWN, KV_HEADS)),
    ]
    assert sizes.cut(own).tolist() == splits[1:].tolist()


def test_a_layout_s_own_lengths_are_cut_and_a_level_s_passes_counted() -> None:
    """Cut a layout's own lengths, and count passes as items: 37 rows are read in two passes."""
    alone = make_case(Geometry(), [(1, 700 + row) for row in range(37)])
    case = grow(alone, [(37, 640)])
    bare = replace(case.layout, splits=None)
    sizes = split_sizes(case.kv)
    own = np.array([60 + row for row in range(37)], np.int32)
    expected = sizes.cut(own, np.array([640] * 2, np.int32))
    assert sizes.cut(own, np.array([640], np.int32)).tolist() != expected.tolist()
    found = with_units(bare, case.kv, case.q.shape[1]).splits
    assert found is not None
    assert found.tolist() == expected.tolist()
