"""States in the pool are contiguous and aligned, and their layers share no number."""

from __future__ import annotations

import pytest
import torch

from storage.errors import PoolDoesNotFit
from storage.layouts.kv_layout import ALIGNMENT
from storage.layouts.state_layout import StateLayout, StateShape
from storage.move import FIRST_SLOT
from storage.pools.state_pool import StatePool

CPU = torch.device("cpu")
DELTA = StateShape(conv_channels=7, conv_inputs=3, heads=4, rows=16, columns=32)
OTHER = StateShape(conv_channels=5, conv_inputs=1, heads=2, rows=8, columns=6)
LAYOUT = StateLayout((DELTA, OTHER, DELTA), "bfloat16")


def test_a_state_is_all_layers_one_after_the_other_each_part_aligned() -> None:
    # 42 and 10 bytes of convolution states, padded to 48 and 16
    delta, other = 48 + 4 * 16 * 32 * 4, 16 + 2 * 8 * 6 * 4
    assert LAYOUT.state_bytes == 2 * delta + other
    begins = [0, delta, delta + other]
    assert LAYOUT.offsets() == [
        (begins[0], 48),
        (begins[1], delta + 16),
        (begins[2], begins[2] + 48),
    ]
    assert all(part % ALIGNMENT == 0 for parts in LAYOUT.offsets() for part in parts)


def test_a_state_of_no_layers_is_none() -> None:
    with pytest.raises(ValueError, match="no layers"):
        StateLayout((), "float32")


def test_layers_have_their_shapes_and_share_no_number() -> None:
    pool = StatePool(LAYOUT, 5, CPU, 64)
    assert [tuple(one.conv.shape) for one in pool.layers] == [(5, 7, 3), (5, 5, 1), (5, 7, 3)]
    assert [tuple(one.recurrence.shape) for one in pool.layers] == [
        (5, 4, 16, 32),
        (5, 2, 8, 6),
        (5, 4, 16, 32),
    ]
    assert {one.conv.dtype for one in pool.layers} == {torch.bfloat16}
    assert {one.recurrence.dtype for one in pool.layers} == {torch.float32}
    views = [view for one in pool.layers for view in one]
    for number, view in enumerate(views, start=1):
        assert not view.any(), "it is zeroed, and no view before it reaches into it"
        view.fill_(number)
    for number, view in enumerate(views, start=1):
        assert (view == number).all()


def test_a_slot_is_one_contiguous_run() -> None:
    pool = StatePool(LAYOUT, 4, CPU, 64)
    for layer in pool.layers:
        layer.conv[2].fill_(1.0)
        layer.recurrence[2].fill_(1.0)
    assert pool.tensor.shape == (4, 64 * LAYOUT.blocks(64))
    assert pool.blocks.shape == (4 * pool.slot_blocks, 64)
    assert pool.tensor[2].any()
    assert not pool.tensor[[0, 1, 3]].any()
    pool.tensor[3] = pool.tensor[2]
    assert (pool.layers[2].recurrence[3] == 1.0).all(), "a copy of the run is the state"


def test_a_pool_has_a_slot_to_give() -> None:
    with pytest.raises(PoolDoesNotFit, match="none to give"):
        StatePool(LAYOUT, FIRST_SLOT, CPU, 64)
    assert StatePool(LAYOUT, FIRST_SLOT + 1, CPU, 64).num_slots == 2
