"""The host tier's bytes: one arena of blocks in memory, pinned where there is a GPU."""

from __future__ import annotations

import torch
from torch import Tensor


class HostPool:
    """(num_blocks, block_bytes) uint8, allocated once."""

    def __init__(self, num_blocks: int, block_bytes: int, device: torch.device) -> None:
        """Raise PoolDoesNotFit where `num_blocks` is under 1 or the memory is not there.

        Pinned for copies to and from `device` where that is a GPU.
        """
        raise NotImplementedError

    num_blocks: int
    block_bytes: int
    tensor: Tensor  # (num_blocks, block_bytes) uint8
    seconds: float  # what allocating and pinning it took

    def close(self) -> None:
        """Give the memory back; the tensor is not to be used any more."""
        raise NotImplementedError
