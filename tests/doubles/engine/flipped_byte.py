"""A fault of memory: one byte of a block of KV that is not what was written."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from storage.pools.device_pool import DevicePool

HIGH_BYTE = 3  # of a float32, little endian: sign and most of the exponent
EXPONENT = 0x7C  # what is about 0.1 becomes about 26, and every sum stays finite


@dataclass(frozen=True)
class FlippedByte:
    """A byte of the first value of one block; `flip` twice is as before."""

    pool: DevicePool
    block: int

    def flip(self) -> None:
        """Make a value of ordinary size a large one."""
        held = self.pool.tensor.view(self.pool.num_blocks, -1).view(torch.uint8)
        held[self.block, HIGH_BYTE] ^= EXPONENT
