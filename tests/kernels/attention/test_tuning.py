"""The shipped tuning: kernels support its sizes, and two thresholds have their intended values."""

from __future__ import annotations

import pytest
import torch

from kernels.attention.prefill.prefill_attention import num_splits
from kernels.attention.tuning import (
    SHORT_WINDOW,
    decode_tuning,
    hopper_tuning,
    prefill_tuning,
    shared_tuning,
    worth_sharing,
)

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)


@DTYPES
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 192, 256, 512])
def test_tiles_are_powers_of_two_and_divide_the_least_units(
    head_dim: int, dtype: torch.dtype
) -> None:
    decode, prefill = decode_tuning(head_dim, dtype), prefill_tuning(head_dim, dtype)
    short = prefill_tuning(head_dim, dtype, SHORT_WINDOW)
    for number in (decode.tile, prefill.tile, prefill.queries, short.tile, short.queries):
        assert number >= 16
        assert number & (number - 1) == 0
    assert decode.least_keys % decode.tile == 0
    assert decode.at_once <= decode.splits
    shared = shared_tuning(head_dim, dtype)
    assert shared.tile >= 16
    assert shared.least_keys % shared.tile == 0
    assert (short.tile < prefill.tile) == (head_dim <= 128 and dtype != torch.float32)
    assert prefill_tuning(head_dim, dtype, SHORT_WINDOW + 1) == prefill


@pytest.mark.parametrize(
    ("programs", "context", "splits"),
    [(1, 255, 1), (1, 512, 2), (8, 4_096, 16), (16, 131_072, 8), (66, 131_072, 2), (67, 9_999, 1)],
)
def test_keys_are_split_where_programs_are_few(programs: int, context: int, splits: int) -> None:
    assert num_splits(programs, context, hopper_tuning(128)) == splits


def test_a_long_prefix_of_one_query_block_is_split_at_most_64_times() -> None:
    assert num_splits(1, 131_072, hopper_tuning(128)) == 64


def test_sharing_is_worth_its_launches_from_64_mib_on() -> None:
    assert worth_sharing(16_384, 4_096)
    assert not worth_sharing(16_383, 4_096)
    assert worth_sharing(32_768, 2_048)
