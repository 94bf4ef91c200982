"""The outputs of padding rows, which the scans of prompts write as zeros."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def write_padding(
    out: tl.tensor,
    first: tl.tensor,
    new: tl.tensor,
    column: tl.tensor,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    """Write zeros to columns (C,) of `new` tokens, from token `first` on, of out (T, WIDTH)."""
    i = tl.arange(0, CHUNK)
    for begin in tl.range(0, new, CHUNK):
        place = (first + begin + i)[:, None] * WIDTH + column[None, :]
        zeros = tl.zeros([CHUNK, column.shape[0]], out.dtype.element_ty)
        tl.store(out + place, zeros, mask=(begin + i < new)[:, None])
