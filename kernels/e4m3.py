"""The numbers of fp8: e4m3, with 3 bits after the first one, at most 448."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0


def rounded(x: Tensor) -> Tensor:
    """Round x of any float dtype to the nearest number of e4m3, cut off at the largest."""
    return x.clamp(-LARGEST, LARGEST).to(E4M3)


def fits(largest: Tensor) -> Tensor:
    """Return the scale by which `largest`, float32, becomes the largest number of e4m3."""
    # By a tensor: on a GPU a division by a number becomes a product with its reciprocal.
    return largest / torch.full_like(largest, LARGEST)


@triton.jit
def to_e4m3(x: tl.tensor, inverse: tl.tensor) -> tl.tensor:
    """Convert x float32 times the reciprocal of its scale, as `rounded` does."""
    return tl.minimum(tl.maximum(x * inverse, -448.0), 448.0).to(tl.float8e4nv)
