"""The device code of GEMMs with 4-bit integer matrices (`int4_matrix`), for 16-bit dtypes.

GPUs convert integers to floats slowly. Instead this code puts an integer into the last bits of the
number 1024 in float16, or of 128 in bfloat16. Such a number is called lifted. The difference
between a lifted number and a lifted zero point is exact, and its product with the scale is rounded
once. The results equal those of `Int4Matrix.dequantised` to the bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.launch.dependent_launch import launch_dependents_and_wait


@triton.jit
def _scales_and_zeros(
    scales: tl.tensor,
    zeros: tl.tensor,
    group: tl.tensor,
    feature: tl.tensor,
    inside: tl.tensor,
    N: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Load the scales and lifted zero points (features,) of a group of columns."""
    place = group * N + feature
    scale = tl.load(scales + place, mask=inside, other=0.0)
    zero = scale  # a value that is not used, without zero points
    if HAS_ZEROS:
        LIFT: tl.constexpr = 1024.0 if scale.dtype == tl.float16 else 128.0
        given = tl.load(zeros + place, mask=inside, other=0).to(tl.float32)
        zero = (given + LIFT).to(scale.dtype)
    return scale, zero


@triton.jit
def _numbers(
    words: tl.tensor,
    scale: tl.tensor,
    zero: tl.tensor,
    PLACE: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
) -> tl.tensor:
    """Unpack number PLACE of each word in `words` (features, columns), and dequantise it."""
    MAGIC: tl.constexpr = 0x6400 if scale.dtype == tl.float16 else 0x4300
    EIGHT: tl.constexpr = 1032.0 if scale.dtype == tl.float16 else 136.0
    lifted = (((words >> (4 * PLACE)) & 15) | MAGIC).to(scale.dtype, bitcast=True)
    # EIGHT is a constant. With a tensor the compiler would move the numbers through shared memory.
    difference = lifted - zero[:, None] if HAS_ZEROS else lifted - EIGHT
    return difference * scale[:, None]


@triton.jit(do_not_specialize=["rows"])
def product_kernel(
    x: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    x_stride: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    STRIP: tl.constexpr,
    SPAN: tl.constexpr,
    STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Compute the part (rows of x, strip of the matrix, share of K) of `out` (S, T, N)."""
    launch_dependents_and_wait(DEPENDENT)
    STRIDE: tl.constexpr = SPAN // 4
    share, shares = tl.program_id(2), tl.num_programs(2)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    feature = tl.program_id(1) * STRIP + tl.arange(0, STRIP)
    word = tl.arange(0, STRIDE)
    inside, real = feature < N, row < rows
    own = values + feature[:, None].to(tl.int64) * (K // 4) + word[None, :]
    inputs = x + row[None, :].to(tl.int64) * x_stride + word[:, None]
    begin, end = share * (K // SPAN) // shares, (share + 1) * (K // SPAN) // shares
    acc = tl.zeros([STRIP, ROWS], dtype=tl.float32)
    for span in tl.range(begin, end, num_stages=STAGES):
        words = tl.load(own + span * STRIDE, mask=inside[:, None], other=0)
        for place in tl.static_range(4):
            column = span * SPAN + place * STRIDE
            if place % (GROUP // STRIDE) == 0:
                scale, zero = _scales_and_zeros(
                    scales, zeros, column // GROUP, feature, inside, N, HAS_ZEROS
                )
            part = tl.load(inputs + column, mask=real[None, :], other=0.0)
            acc = tl.dot(_numbers(words, scale, zero, place, HAS_ZEROS), part, acc)
    if HAS_BIAS:  # only the first share adds the bias
        once = inside & (share == 0)
        acc += tl.load(bias + feature, mask=once, other=0.0).to(tl.float32)[:, None]
    goal = out + (share * rows + row[None, :]).to(tl.int64) * N + feature[:, None]
    tl.store(goal, acc.to(out.dtype.element_ty), mask=inside[:, None] & real[None, :])


@triton.jit
def dequantise_kernel(
    values: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    out: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    STRIP: tl.constexpr,
    SPAN: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Dequantise the part (span, strip) of the matrix to `out` (N, K)."""
    launch_dependents_and_wait(DEPENDENT)
    STRIDE: tl.constexpr = SPAN // 4
    span = tl.program_id(0)
    feature = tl.program_id(1) * STRIP + tl.arange(0, STRIP)
    word = tl.arange(0, STRIDE)
    inside = feature < N
    row = feature[:, None].to(tl.int64)
    words = tl.load(
        values + row * (K // 4) + span * STRIDE + word[None, :], mask=inside[:, None], other=0
    )
    for place in tl.static_range(4):
        column = span * SPAN + place * STRIDE
        if place % (GROUP // STRIDE) == 0:
            scale, zero = _scales_and_zeros(
                scales, zeros, column // GROUP, feature, inside, N, HAS_ZEROS
            )
        goal = out + row * K + column + word[None, :]
        tl.store(goal, _numbers(words, scale, zero, place, HAS_ZEROS), mask=inside[:, None])
