"""The device's memory for rings: the last keys and values of layers with a window.

    slot 0 .. num_slots - 1     a ring each, with the number of the sequence's state slot
    after these                 scratch blocks for the prompts of one step

A prompt's row may have more new tokens than a ring has room for. The row writes them to scratch
blocks. When the row has been computed, the last of these scratch blocks are copied to the row's
ring. Rings and scratch blocks are blocks of one tensor, so that a block table can name both.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.attention.batch_layout import BatchLayout
from storage.errors import PoolDoesNotFit
from storage.layouts.window_layout import WindowLayout
from storage.move import FIRST_SLOT
from storage.pools.device_pool import empty_blocks, layer_views


class RingShape(NamedTuple):
    """The numbers from which the index of a block in a `WindowPool` is computed."""

    places: int  # number of blocks of a ring
    block_size: int
    scratch: int  # number of the first scratch block
    num_blocks: int


class StepWindows(NamedTuple):
    """The memory of the layers with a window in a step."""

    layout: BatchLayout  # layout of the batch with these layers' own block tables and slots
    layers: tuple[Tensor, ...]  # KV of each layer, as in `DevicePool.layers`


class WindowPool:
    """The window pool: one tensor, allocated once and zeroed.

    `rings` (blocks, numbers) is all blocks. `blocks` is the same memory as blocks of the KV pool's
    size, (slots * blocks of a ring or more, block_bytes) uint8. These blocks are moved to lower
    tiers. Threads use the pool as they use `DevicePool`.
    """

    def __init__(
        self,
        layout: WindowLayout,
        num_slots: int,
        device: torch.device,
        block_bytes: int,
        scratch_blocks: int,
    ) -> None:
        """Allocate the pool.

        Raises PoolDoesNotFit if no sequence would get a slot or the device lacks the memory.
        """
        if num_slots <= FIRST_SLOT:
            raise PoolDoesNotFit(f"a pool of {num_slots} rings has none to give")
        self.layout = layout
        self.num_slots = num_slots
        self.slot_blocks = layout.blocks(block_bytes)
        slots = num_slots + layout.scratch_slots(scratch_blocks)
        self.rings = _allocate(layout, slots, device)
        self.blocks = self.rings.view(torch.uint8).view(-1, block_bytes)
        self.layers = layer_views(self.rings, layout.kv)

    @property
    def shape(self) -> RingShape:
        """The numbers from which the index of a block is computed."""
        places = self.layout.places
        scratch = self.num_slots * places
        return RingShape(places, self.layout.kv.block_size, scratch, len(self.rings))


def _allocate(layout: WindowLayout, num_slots: int, device: torch.device) -> Tensor:
    try:
        return empty_blocks(layout.kv, num_slots * layout.places, device)
    except (torch.OutOfMemoryError, MemoryError) as error:
        wanted = num_slots * layout.state_bytes
        raise PoolDoesNotFit(f"{wanted} bytes of windows do not fit on {device}") from error
