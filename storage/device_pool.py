"""The device tier's bytes: one tensor that holds every block of KV.

    (num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim)

Block first, so that a block is one contiguous run of all layers and moving it is one plain
copy. Knows shapes and bytes. Does not know which block is free, whose it is, or what tokens
lie in it: that is the prefix cache's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.batch_layout import empty_pool, kv_pool_shape
from storage.errors import PoolDoesNotFit
from storage.late_layers import late_layers_of


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What one block holds: `block_size` tokens' keys and values, for all layers."""

    num_layers: int
    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        numbers = self.num_layers * 2 * self.num_kv_heads * self.block_size * self.head_dim
        return numbers * self.dtype.itemsize


class DevicePool:
    """The tensor, allocated once and zeroed.

    Concurrency: allocated, viewed and dropped by the one owner thread. It has no lock: the
    views alias the pool, and reads and writes through them are ordered by the device's stream; a
    second stream has to wait for an event of the first.
    """

    def __init__(
        self, shape: BlockShape, num_blocks: int, device: torch.device, max_late_bytes: int = 0
    ) -> None:
        """Raise PoolDoesNotFit where `num_blocks` is under 1 or the device has not the memory.

        `max_late_bytes`: how much of a load steps may wait for by themselves (`LateLayers`).
        """
        if num_blocks < 1:
            raise PoolDoesNotFit(f"a pool of {num_blocks} blocks holds no token")
        self.shape = shape
        self.num_blocks = num_blocks
        self.tensor = _allocate(shape, num_blocks, device)
        self.late = late_layers_of(shape.num_layers, max_late_bytes, device)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.shape.block_bytes


def _allocate(shape: BlockShape, num_blocks: int, device: torch.device) -> Tensor:
    sizes = kv_pool_shape(
        num_blocks, shape.num_layers, shape.num_kv_heads, shape.block_size, shape.head_dim
    )
    try:
        return empty_pool(sizes, shape.dtype, device)
    except torch.OutOfMemoryError as error:
        wanted = num_blocks * shape.block_bytes
        raise PoolDoesNotFit(f"{wanted} bytes of KV do not fit on {device}") from error
