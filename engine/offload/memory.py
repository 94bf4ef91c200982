"""A layer's tensors as one run of bytes, so that one copy moves them all.

A layer's tensors are taken from the run one after the other. A layer that is built on two runs has
each tensor at the same place in both. So a copy of the run's bytes is a copy of the layer, in any
weight format.

Knows: sizes and alignment. Does not know: layers, or which memory the run lies in.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

# The alignment of torch's GPU allocator: kernels may be compiled and chosen by alignment.
ALIGNMENT = 512


class RunMemory:
    """Tensors in the bytes `run` (bytes,) uint8; implements `Memory`."""

    def __init__(self, run: Tensor) -> None:
        self._run = run
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Take the next tensor from the run, with the contents that the run has."""
        first, size = self._used, prod(shape) * dtype.itemsize
        self._used = end_after(first, size)
        return self._run[first : first + size].view(dtype).view(shape)


class CountingMemory:
    """Tensors without values, whose bytes are counted; implements `Memory`."""

    def __init__(self) -> None:
        self.num_bytes = 0  # bytes of a run with all its tensors

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self.num_bytes = end_after(self.num_bytes, prod(shape) * dtype.itemsize)
        return torch.empty(shape, dtype=dtype, device="meta")


def end_after(first: int, size: int) -> int:
    """Return the aligned start of the next tensor, after `size` bytes at `first`."""
    return -(-(first + size) // ALIGNMENT) * ALIGNMENT
