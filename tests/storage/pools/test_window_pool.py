"""Rings of blocks have the right length, and every slot and scratch block its own memory."""

from __future__ import annotations

import pytest
import torch

from storage.errors import PoolDoesNotFit
from storage.layouts.kv_layout import FP8, KvGroup, KvLayout
from storage.layouts.window_layout import WindowLayout
from storage.move import FIRST_SLOT
from storage.pools.window_pool import WindowPool

CPU = torch.device("cpu")
WINDOWS = KvLayout((KvGroup((0, 2), 2, 8, "float32", 40), KvGroup((1,), 1, 16, "float32", 24)), 16)
WHOLE = KvLayout((KvGroup((0, 1), 2, 8, "float32"),), 16)


@pytest.mark.parametrize(
    ("window", "places"), [(1, 2), (2, 3), (17, 3), (18, 4), (128, 10), (1024, 66)]
)
def test_a_ring_has_the_blocks_of_any_window_and_of_a_row_of_drafts(
    window: int, places: int
) -> None:
    kv = KvLayout((KvGroup((0,), 2, 8, "float32", window),), 16)
    layout = WindowLayout.of(kv, kv.block_bytes)
    assert layout.places == places
    # The blocks with keys for a row's first token, up to the second block after that token's block.
    touched = {129 - (2048 + first - window + 1) // 16 + 1 for first in range(16)}
    assert max(touched) == places


def test_a_ring_is_as_long_as_whole_blocks_of_the_pool() -> None:
    layout = WindowLayout.of(WINDOWS, WHOLE.block_bytes)
    assert layout.kv.block_bytes * 2 == WHOLE.block_bytes * 3
    assert layout.places == 6, "5, rounded up to an even number"
    assert layout.state_bytes == 9 * WHOLE.block_bytes
    assert layout.blocks(WHOLE.block_bytes) == 9
    assert [layout.scratch_slots(blocks) for blocks in (0, 1, 6, 7)] == [0, 1, 1, 2]


def test_layers_without_a_window_have_no_ring() -> None:
    with pytest.raises(ValueError, match="without a window"):
        WindowLayout.of(WHOLE, WHOLE.block_bytes)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", FP8])
def test_slots_are_moved_as_blocks_of_the_pool(dtype: str) -> None:
    scales = 4 if dtype == FP8 else 0
    kv = KvLayout((KvGroup((0,), 2, 8, dtype, 40, scales),), 16)
    whole = KvLayout((KvGroup((0, 1), 2, 8, dtype, None, scales),), 16)
    pool = WindowPool(WindowLayout.of(kv, whole.block_bytes), 5, CPU, whole.block_bytes, 7)
    places, shape = pool.layout.places, pool.shape
    assert (shape.scratch, shape.num_blocks) == (5 * places, 7 * places)
    [layer] = pool.layers
    for block in range(shape.num_blocks):
        layer.view(torch.uint8)[block] = block
    slot = pool.blocks[2 * pool.slot_blocks : 3 * pool.slot_blocks].view(places, -1)
    written = layer[0].numel() * layer.itemsize
    assert [set(one[:written].tolist()) for one in slot] == [
        {block} for block in range(2 * places, 3 * places)
    ]


def test_a_pool_without_a_slot_to_give_is_refused() -> None:
    layout = WindowLayout.of(WINDOWS, WHOLE.block_bytes)
    with pytest.raises(PoolDoesNotFit, match="none to give"):
        WindowPool(layout, FIRST_SLOT, CPU, WHOLE.block_bytes, 0)
    assert WindowPool(layout, FIRST_SLOT + 1, CPU, WHOLE.block_bytes, 0).num_slots == 2
