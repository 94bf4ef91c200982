"""The tensors of a layer in contiguous bytes, so that one copy copies the layer.

A layer's tensors are taken from the bytes one after another. If a layer is built on two runs of
bytes, each tensor is at the same place in both. A copy of the bytes is therefore a copy of the
layer, in any weight format.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

# The alignment in bytes of torch's GPU allocator. Kernels may rely on it.
ALIGNMENT = 512


class RunMemory:
    """A memory that places tensors one after another in `run` (bytes,). Implements `Memory`."""

    def __init__(self, run: Tensor) -> None:
        self._run = run
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the next tensor in `run`. Its bytes are not changed."""
        first, size = self._used, prod(shape) * dtype.itemsize
        self._used = end_after(first, size)
        return self._run[first : first + size].view(dtype).view(shape)


class CountingMemory:
    """A memory that makes tensors on the device "meta" and counts bytes. Implements `Memory`."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self.num_bytes = end_after(self.num_bytes, prod(shape) * dtype.itemsize)
        return torch.empty(shape, dtype=dtype, device="meta")


def end_after(first: int, size: int) -> int:
    """Return the aligned start of the next tensor, after a tensor of `size` bytes at `first`."""
    return -(-(first + size) // ALIGNMENT) * ALIGNMENT
