"""A block's layers have the right sizes and offsets, also in slices for ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage.errors import UnevenSlices
from storage.layouts.kv_layout import ALIGNMENT, KvGroup, KvLayout
from tests.doubles.layouts import alike_layers

LLAMA_8B = alike_layers(32, 8, head_dim=128, dtype="bfloat16", block_size=16)
FULL = KvGroup(layers=(0, 2), num_kv_heads=2, head_dim=8, dtype="float32")
WINDOW = KvGroup(layers=(1,), num_kv_heads=1, head_dim=16, dtype="bfloat16", window=32)
TWO = KvLayout((FULL, WINDOW), block_size=16)


def test_alike_layers_follow_each_other_at_equal_distances() -> None:
    each = 2 * 8 * 16 * 128 * 2
    assert [LLAMA_8B.offset(layer) for layer in (0, 1, 24)] == [0, each, 24 * each]
    assert LLAMA_8B.block_bytes == 32 * each == 2 * 2**20
    assert LLAMA_8B.token_bytes == 131072
    assert LLAMA_8B.num_layers == 32


def test_layers_of_two_groups_lie_in_the_models_order() -> None:
    full, window = 2 * 2 * 16 * 8 * 4, 2 * 1 * 16 * 16 * 2
    assert [TWO.offset(layer) for layer in range(4)] == [0, full, full + window, TWO.block_bytes]
    assert TWO.block_bytes == 2 * full + window
    assert [TWO.group_of(layer) for layer in range(3)] == [FULL, WINDOW, FULL]


def test_what_a_window_leaves_out_is_kept_all_the_same() -> None:
    whole = replace(TWO, groups=(FULL, replace(WINDOW, window=None)))
    assert whole.block_bytes == TWO.block_bytes


def test_values_that_are_a_part_of_the_keys_take_no_bytes() -> None:
    keys = replace(TWO, groups=(replace(FULL, has_values=False), WINDOW))
    assert TWO.block_bytes - keys.block_bytes == 2 * 2 * 16 * 8 * 4
    assert [FULL.planes, keys.groups[0].planes] == [2, 1]


@pytest.mark.parametrize(("scale_bytes", "taken"), [(0, 0), (1, 16), (16, 16), (17, 32)])
def test_scales_lie_with_their_layer_and_layers_begin_aligned(scale_bytes: int, taken: int) -> None:
    scaled = replace(TWO, groups=(replace(FULL, scale_bytes=scale_bytes), WINDOW))
    assert scaled.offset(1) - TWO.offset(1) == taken
    assert scaled.block_bytes - TWO.block_bytes == 2 * taken
    assert all(scaled.offset(layer) % ALIGNMENT == 0 for layer in range(4))


@pytest.mark.parametrize("layers", [(), (1,), (0, 0), (0, 2), (-1, 0)])
def test_refuses_layers_that_are_not_each_layer_once(layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="each layer of a model once"):
        KvLayout((replace(FULL, layers=layers),), 16)
    with pytest.raises(ValueError, match="each layer of a model once"):
        KvLayout((), 16)
    assert KvLayout((replace(FULL, layers=(1, 0)),), 16).num_layers == 2


def test_a_slice_has_its_part_of_the_heads_and_of_their_scales() -> None:
    whole = replace(TWO, groups=(replace(FULL, scale_bytes=20), replace(WINDOW, num_kv_heads=4)))
    for rank in range(2):
        part = whole.slice_of(rank, 2)
        assert [group.num_kv_heads for group in part.groups] == [1, 2]
        assert [group.scale_bytes for group in part.groups] == [10, 0]
        assert [group.window for group in part.groups] == [None, 32]
        assert part.slice is not None
        assert (part.slice.rank, part.slice.num_ranks) == (rank, 2)
    assert LLAMA_8B.slice_of(3, 8).block_bytes == LLAMA_8B.block_bytes // 8
    assert whole.slice_of(0, 1) == whole


@pytest.mark.parametrize(
    "whole",
    [
        replace(TWO, groups=(FULL, replace(WINDOW, num_kv_heads=3))),
        replace(LLAMA_8B, groups=(replace(LLAMA_8B.groups[0], scale_bytes=3),)),
    ],
    ids=["a group has three heads", "an odd number of bytes of scales"],
)
def test_refuses_heads_that_do_not_divide(whole: KvLayout) -> None:
    with pytest.raises(UnevenSlices, match="do not divide between 2 ranks"):
        whole.slice_of(1, 2)
    assert LLAMA_8B.slice_of(1, 2).num_layers == 32, "the control: these do"
    with pytest.raises(UnevenSlices):
        LLAMA_8B.slice_of(0, 3)
    with pytest.raises(UnevenSlices):
        LLAMA_8B.slice_of(0, 12)


def test_of_fewer_heads_than_ranks_each_is_kept_by_several() -> None:
    slices = [LLAMA_8B.slice_of(rank, 16) for rank in range(16)]
    assert {one.block_bytes for one in slices} == {LLAMA_8B.block_bytes // 8}
    assert len(set(slices)) == 16, "each is one rank's own all the same"


@pytest.mark.parametrize(("rank", "num_ranks"), [(2, 2), (-1, 2), (0, 0)])
def test_there_is_no_slice_of_a_rank_that_is_not_there(rank: int, num_ranks: int) -> None:
    with pytest.raises(ValueError, match=f"no rank {rank} of {num_ranks}"):
        LLAMA_8B.slice_of(rank, num_ranks)
    with pytest.raises(ValueError, match="no rank 0 of 2"):
        LLAMA_8B.slice_of(0, 2).slice_of(0, 2)
