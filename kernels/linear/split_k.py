"""The split-K partials: the partial sums of a product, before they are added.

    whole (T, N), of the model's dtype        parts (S, T, N) float32; whole = sum of parts over S

The next kernel, which reads the product, adds the partials in order when it loads them. No separate
kernel is needed, and the partials are still in the L2 cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def whole(product: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the product as (T, N) of `dtype`. A product (T, N) is returned unchanged."""
    return product if product.dim() == 2 else product.sum(0).to(dtype)


def layout(product: Tensor) -> tuple[int, int, int]:
    """Return the number of parts, and the strides between parts and rows, in elements."""
    if product.dim() == 2:
        return 1, 0, product.stride(0)
    return product.shape[0], product.stride(0), product.stride(1)


@triton.jit
def load_summed(
    source: tl.tensor, part_stride: tl.tensor, inside: tl.tensor, PARTS: tl.constexpr
) -> tl.tensor:
    """Load the product's elements at `source`. The sum of several parts is float32.

    Parts of several ranks may have 16 bits. Their sum is rounded once.
    """
    total = tl.load(source, mask=inside, other=0.0)
    if PARTS > 1:
        total = total.to(tl.float32)
    for part in tl.static_range(1, PARTS):
        total += tl.load(source + part * part_stride, mask=inside, other=0.0).to(tl.float32)
    return total
