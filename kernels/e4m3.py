"""The numbers of fp8 e4m3, which have 3 mantissa bits and are at most 448."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0


def rounded(x: Tensor) -> Tensor:
    """Round x of any float dtype to the nearest e4m3 number, clamped to 448."""
    return x.clamp(-LARGEST, LARGEST).to(E4M3)


def fits(largest: Tensor) -> Tensor:
    """Return the scale that maps `largest`, float32, to the largest e4m3 number."""
    # The divisor is a tensor, because on a GPU a division by a Python number becomes a product with
    # the number's reciprocal.
    return largest / torch.full_like(largest, LARGEST)


@triton.jit
def to_e4m3(x: tl.tensor, inverse: tl.tensor) -> tl.tensor:
    """Round x float32, times the reciprocal of the scale, to e4m3 like `rounded`."""
    return tl.minimum(tl.maximum(x * inverse, -448.0), 448.0).to(tl.float8e4nv)
