"""The copies of blocks within one pool: pool[target[i]] = pool[source[i]] for every i.

The copies run in any order, so a target must not be a source, nor another copy's target.
`DevicePool` divides plans into calls that satisfy this.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.rounding import cdiv

_CHUNK = 8192


def reference(pool: Tensor, source: Tensor, target: Tensor) -> None:
    """Copy blocks within pool (N, ...). `source` and `target` (n,) int64 are block ids.

    The result is undefined unless targets are distinct and no target is a source. Plain PyTorch.
    """
    pool.index_copy_(0, target, pool.index_select(0, source))


@triton.jit
def _copy_blocks_kernel(
    pool: tl.tensor,
    source: tl.tensor,
    target: tl.tensor,
    SIZE: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    copy = tl.program_id(0) // CHUNKS
    offset = (tl.program_id(0) % CHUNKS) * CHUNK + tl.arange(0, CHUNK)
    inside = offset < SIZE
    origin = tl.load(source + copy).to(tl.int64) * SIZE
    goal = tl.load(target + copy).to(tl.int64) * SIZE
    tl.store(pool + goal + offset, tl.load(pool + origin + offset, mask=inside), mask=inside)


def launch(pool: Tensor, source: Tensor, target: Tensor) -> None:
    """Compute `reference` on the device in one launch. The pool must be contiguous."""
    if copies := source.shape[0]:
        size = pool.stride(0)
        chunks = cdiv(size, _CHUNK)
        _copy_blocks_kernel[(copies * chunks,)](
            pool, source, target, SIZE=size, CHUNKS=chunks, CHUNK=_CHUNK, num_warps=8
        )
