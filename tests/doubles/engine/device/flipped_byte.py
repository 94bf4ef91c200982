"""A memory fault: one byte of a block's KV differs from the byte that was written."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from storage.pools.device_pool import DevicePool

HIGH_BYTE = 3  # the high byte of a little-endian float32 has the sign and most of the exponent
EXPONENT = 0x7C  # a value of about 0.1 becomes about 26, and every sum stays finite


@dataclass(frozen=True)
class FlippedByte:
    """A byte of the first value of one block. A second `flip` undoes the first."""

    pool: DevicePool
    block: int

    def flip(self) -> None:
        """Make a value of ordinary size large."""
        held = self.pool.tensor.view(self.pool.num_blocks, -1).view(torch.uint8)
        held[self.block, HIGH_BYTE] ^= EXPONENT
