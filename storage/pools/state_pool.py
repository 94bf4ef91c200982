"""The device's memory for recurrent states: one tensor of all slots, and views by layer.

The first dimension is the slot, so a state is one contiguous run of all layers (`state_layout`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.recurrence.state_rows import StateRows
from storage.errors import PoolDoesNotFit
from storage.layouts.state_layout import RECURRENCE_DTYPE, StateLayout, StateShape
from storage.move import FIRST_SLOT
from storage.pools.zeroed import zeroed


class LayerState(NamedTuple):
    """The recurrent states of one layer in all slots S, as views of the pool."""

    conv: Tensor  # (S, channels, inputs), of the model's dtype
    recurrence: Tensor  # (S, heads, rows, columns) float32


class StepStates(NamedTuple):
    """The recurrent states that a step reads and writes, of all recurrent layers in order."""

    rows: StateRows
    layers: tuple[LayerState, ...]


class StatePool:
    """The state pool: one tensor (slots, bytes) uint8, allocated once and zeroed.

    A slot is as long as a whole number of KV blocks, since states take slots of blocks in lower
    tiers. `blocks` is the pool as (slots * blocks of a state, block_bytes). Threads use the pool as
    they use `DevicePool`.
    """

    def __init__(
        self, layout: StateLayout, num_slots: int, device: torch.device, block_bytes: int
    ) -> None:
        """Allocate the pool.

        Raises PoolDoesNotFit if no sequence would get a slot or the device lacks the memory.
        """
        if num_slots <= FIRST_SLOT:
            raise PoolDoesNotFit(f"a pool of {num_slots} states has none to give")
        self.layout = layout
        self.num_slots = num_slots
        self.slot_blocks = layout.blocks(block_bytes)
        self.tensor = _allocate(num_slots, self.slot_blocks * block_bytes, device)
        self.blocks = self.tensor.view(-1, block_bytes)
        self.layers = state_views(self.tensor, layout)


def empty_states(layout: StateLayout, num_slots: int, device: torch.device) -> Tensor:
    """Allocate zeroed slots, each as long as a recurrent state."""
    return zeroed(num_slots * layout.state_bytes, device).view(num_slots, -1)


def state_views(slots: Tensor, layout: StateLayout) -> tuple[LayerState, ...]:
    """Return views of each layer's recurrent states in `slots` (S, bytes), strided by slots."""
    return tuple(
        _layer_state(slots, shape, conv, recurrence, getattr(torch, layout.conv_dtype))
        for shape, (conv, recurrence) in zip(layout.layers, layout.offsets(), strict=True)
    )


def _layer_state(
    slots: Tensor, shape: StateShape, conv: int, recurrence: int, conv_dtype: torch.dtype
) -> LayerState:
    inputs, columns = shape.conv_inputs, shape.columns
    convs, recurrences = slots.view(conv_dtype), slots.view(getattr(torch, RECURRENCE_DTYPE))
    return LayerState(
        convs.as_strided(
            (len(slots), shape.conv_channels, inputs),
            (convs.shape[1], inputs, 1),
            conv // convs.itemsize,
        ),
        recurrences.as_strided(
            (len(slots), shape.heads, shape.rows, columns),
            (recurrences.shape[1], shape.rows * columns, columns, 1),
            recurrence // recurrences.itemsize,
        ),
    )


def _allocate(num_slots: int, slot_bytes: int, device: torch.device) -> Tensor:
    try:
        return zeroed(num_slots * slot_bytes, device).view(num_slots, -1)
    except (torch.OutOfMemoryError, MemoryError) as error:
        wanted = num_slots * slot_bytes
        raise PoolDoesNotFit(f"{wanted} bytes of states do not fit on {device}") from error
