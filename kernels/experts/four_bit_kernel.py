"""The device code of the GEMMs of four-bit experts (`four_bit_matrices`).

Elsewhere: the unpacking of numbers (`four_bit_numbers`), and the order (`order`) and sizes
(`tiles`) of tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.experts.four_bit_numbers import numbers, scale_of_place
from kernels.experts.pair_tile import rows_of_tile, store_products, with_bias
from kernels.launch.dependent_launch import launch_dependents_and_wait


@triton.jit(do_not_specialize=["tokens"])
def product_kernel(
    x: tl.tensor,
    values: tl.tensor,
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
    MXFP4: tl.constexpr,
    GROUP: tl.constexpr,
    UNPACK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Multiply a tile of pairs by rows of the matrix, like `kernels.experts.product_kernel`.

    (A pair is a token and an expert.)

    The matrix is the first operand, so that its unpacked numbers can stay in registers.
    """
    launch_dependents_and_wait(DEPENDENT)
    tile = tl.program_id(1)
    expert = tl.load(owners + tile).to(tl.int64)
    if expert < 0:
        return
    HEIGHT: tl.constexpr = FACTORS * N
    SPANS: tl.constexpr = (K + 127) // 128
    SCALES: tl.constexpr = 1 if MXFP4 else 128 // GROUP  # words of scales per row and span
    EVERY: tl.constexpr = 4 if MXFP4 else GROUP // 32  # number of 32-column runs per word of scales
    dtype: tl.constexpr = x.dtype.element_ty
    pair, real, row = rows_of_tile(pairs, tile, tokens, TOP_K, GATED, ROWS)
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    inside = feature < N
    word = tl.arange(0, 32)
    inputs = x + row[None, :] * K + word[:, None]
    own = values + expert * (SPANS * HEIGHT * 32) + feature[:, None] * 32 + word[None, :]
    own_scales = scales + expert * (SPANS * SCALES * HEIGHT) + feature
    acc = tl.zeros([FEATURES, ROWS], tl.float32)
    up = tl.zeros([FEATURES, ROWS], tl.float32)
    for span in tl.range(0, SPANS, num_stages=STAGES):
        words = tl.load(own + span * (HEIGHT * 32), mask=inside[:, None], other=0)
        if FACTORS == 2:
            up_words = tl.load(own + span * (HEIGHT * 32) + N * 32, mask=inside[:, None], other=0)
        for place in tl.static_range(4):
            if place % EVERY == 0:
                at = (span * SCALES + place // EVERY) * HEIGHT
                given = tl.load(own_scales + at, mask=inside, other=0)
                if FACTORS == 2:
                    up_given = tl.load(own_scales + at + N, mask=inside, other=0)
            column = span * 128 + place * 32
            here = real[None, :] if K % 128 == 0 else real[None, :] & (column + word < K)[:, None]
            part = tl.load(inputs + column, mask=here, other=0.0)
            scale, zero = scale_of_place(given, dtype, place, MXFP4, UNPACK)
            weight = numbers(words, scale, zero, dtype, place, MXFP4, UNPACK)
            acc = tl.dot(weight, part, acc, input_precision="ieee")
            if FACTORS == 2:
                scale, zero = scale_of_place(up_given, dtype, place, MXFP4, UNPACK)
                weight = numbers(up_words, scale, zero, dtype, place, MXFP4, UNPACK)
                up = tl.dot(weight, part, up, input_precision="ieee")
    own_bias = bias + expert * HEIGHT
    acc = with_bias(acc, own_bias, feature, inside, HAS_BIAS, True)
    if FACTORS == 2:
        up = with_bias(up, own_bias + N, feature, inside, HAS_BIAS, True)
    store_products(
        acc, up, routing, out, pair, real, feature, inside, tokens, limit, alpha,
        N, TOP_K, GATED, ACT, LIMITED, True,
    )  # fmt: skip
