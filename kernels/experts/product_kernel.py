"""The device code of the experts' GEMMs (`products`): a tile of pairs times some matrix rows.

Elsewhere: the order (`order`) and the sizes (`tiles`) of tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.experts.pair_tile import rows_of_tile, store_products, with_bias
from kernels.launch.dependent_launch import launch_dependents_and_wait


@triton.jit
def _scaled(
    part: tl.tensor,
    x_scales: tl.tensor,
    scales: tl.tensor,
    row: tl.tensor,
    real: tl.tensor,
    block: tl.tensor,
    step: tl.tensor,
    STEPS: tl.constexpr,
    WEIGHT_FIRST: tl.constexpr,
) -> tl.tensor:
    """Multiply a tile's sum over 128 columns by the scales of x's rows and the weight's block."""
    of_rows = tl.load(x_scales + row * STEPS + step, mask=real, other=0.0)
    of_rows *= tl.load(scales + block * STEPS + step)
    return part * (of_rows[None, :] if WEIGHT_FIRST else of_rows[:, None])


@triton.jit
def _product(
    x: tl.tensor,
    weight: tl.tensor,
    acc: tl.tensor,
    WEIGHT_FIRST: tl.constexpr,
    UPCAST: tl.constexpr,
) -> tl.tensor:
    if UPCAST:  # the interpreter has no fp8 product
        x, weight = x.to(tl.float32), weight.to(tl.float32)
    if WEIGHT_FIRST:
        acc = tl.dot(weight, tl.trans(x), acc, input_precision="ieee")
    else:
        acc = tl.dot(x, tl.trans(weight), acc, input_precision="ieee")
    return acc


@triton.jit
def _finished(
    acc: tl.tensor,
    x_scales: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    row: tl.tensor,
    real: tl.tensor,
    feature: tl.tensor,
    inside: tl.tensor,
    SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WEIGHT_FIRST: tl.constexpr,
) -> tl.tensor:
    """Multiply the sum by the scales of rows and channels, and add the bias."""
    if SCALES == 1:
        of_rows = tl.load(x_scales + row, mask=real, other=0.0)
        of_features = tl.load(scales + feature, mask=inside, other=0.0)
        if WEIGHT_FIRST:
            acc *= of_features[:, None] * of_rows[None, :]
        else:
            acc *= of_rows[:, None] * of_features[None, :]
    return with_bias(acc, bias, feature, inside, HAS_BIAS, WEIGHT_FIRST)


@triton.jit(do_not_specialize=["tokens"])
def product_kernel(
    x: tl.tensor,
    x_scales: tl.tensor,
    weight: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    routing: tl.tensor,
    out: tl.tensor,
    pairs: tl.tensor,
    owners: tl.tensor,
    tokens: tl.tensor,
    limit: tl.tensor,
    alpha: tl.tensor,
    K: tl.constexpr,
    N: tl.constexpr,
    TOP_K: tl.constexpr,
    GATED: tl.constexpr,
    FACTORS: tl.constexpr,
    ACT: tl.constexpr,
    LIMITED: tl.constexpr,
    SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    DEPTH: tl.constexpr,
    WEIGHT_FIRST: tl.constexpr,
    UPCAST: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Multiply a tile of pairs by FEATURES of the N matrix rows.

    With GATED, this is the first GEMM, which ends with a gate. With FACTORS 2, it multiplies by
    FEATURES rows of gate and as many rows of up.
    """
    launch_dependents_and_wait(DEPENDENT)
    tile = tl.program_id(1)
    expert = tl.load(owners + tile).to(tl.int64)
    if expert < 0:
        return
    HEIGHT: tl.constexpr = FACTORS * N
    STEPS: tl.constexpr = (K + DEPTH - 1) // DEPTH
    BLOCKS: tl.constexpr = (HEIGHT + 127) // 128
    pair, real, row = rows_of_tile(pairs, tile, tokens, TOP_K, GATED, ROWS)
    first = tl.program_id(0) * FEATURES
    feature = first + tl.arange(0, FEATURES)
    inside = feature < N
    column = tl.arange(0, DEPTH)
    inputs = x + row[:, None] * K + column[None, :]
    own = weight + expert * HEIGHT * K + feature[:, None].to(tl.int64) * K + column[None, :]
    own_scales = scales + expert * (BLOCKS * STEPS if SCALES == 2 else HEIGHT)
    if WEIGHT_FIRST:
        acc = tl.zeros([FEATURES, ROWS], tl.float32)
        up = tl.zeros([FEATURES, ROWS], tl.float32)
    else:
        acc = tl.zeros([ROWS, FEATURES], tl.float32)
        up = tl.zeros([ROWS, FEATURES], tl.float32)
    empty = acc
    for step in range(STEPS):
        start = step * DEPTH
        EVEN: tl.constexpr = K % DEPTH == 0
        left = real[:, None] if EVEN else real[:, None] & (start + column < K)[None, :]
        right = inside[:, None] if EVEN else inside[:, None] & (start + column < K)[None, :]
        a = tl.load(inputs + start, mask=left, other=0.0)
        b = tl.load(own + start, mask=right, other=0.0)
        if SCALES == 2:
            part = _product(a, b, empty, WEIGHT_FIRST, UPCAST)
            acc += _scaled(
                part, x_scales, own_scales, row, real, first // 128, step, STEPS, WEIGHT_FIRST
            )
        else:
            acc = _product(a, b, acc, WEIGHT_FIRST, UPCAST)
        if FACTORS == 2:
            c = tl.load(own + N * K + start, mask=right, other=0.0)
            if SCALES == 2:
                part = _product(a, c, empty, WEIGHT_FIRST, UPCAST)
                up += _scaled(
                    part, x_scales, own_scales, row, real, (N + first) // 128, step, STEPS,
                    WEIGHT_FIRST,
                )  # fmt: skip
            else:
                up = _product(a, c, up, WEIGHT_FIRST, UPCAST)
    own_bias = bias + expert * HEIGHT
    acc = _finished(
        acc, x_scales, own_scales, own_bias, row, real, feature, inside,
        SCALES, HAS_BIAS, WEIGHT_FIRST,
    )  # fmt: skip
    if FACTORS == 2:
        up = _finished(
            up, x_scales, own_scales + N, own_bias + N, row, real, feature, inside,
            SCALES, HAS_BIAS, WEIGHT_FIRST,
        )  # fmt: skip
    store_products(
        acc, up, routing, out, pair, real, feature, inside, tokens, limit, alpha,
        N, TOP_K, GATED, ACT, LIMITED, WEIGHT_FIRST,
    )  # fmt: skip
