"""The numbers of fp8 e4m3. They have 3 mantissa bits, and their maximum is 448."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0


def rounded(x: Tensor) -> Tensor:
    """Round x, of any float dtype, to the nearest e4m3 number, at most 448 in magnitude."""
    return x.clamp(-LARGEST, LARGEST).to(E4M3)


def fits(largest: Tensor) -> Tensor:
    """Return the scale that maps `largest`, float32, to the largest e4m3 number."""
    # The divisor is a tensor, because on a GPU torch replaces division by a Python number by
    # multiplication with its reciprocal.
    return largest / torch.full_like(largest, LARGEST)


@triton.jit
def to_e4m3(x: tl.tensor, inverse: tl.tensor) -> tl.tensor:
    """Multiply x float32 by `inverse`, the reciprocal of the scale, and round to e4m3."""
    return tl.minimum(tl.maximum(x * inverse, -448.0), 448.0).to(tl.float8e4nv)
