"""The GEMM of four-bit experts for many tokens, with Hopper's WGMMA.

The kernel computes the same sums as `four_bit_kernel`, in the same order. Triton's compiler makes
`four_bit_kernel` wait for each product before it unpacks the next numbers. In this kernel products
and unpacking overlap:

    copies      span s + 2: inputs of 128 pairs, words and scales
    registers   | unpack 0 | unpack 1 | unpack 2 | unpack 3 | unpack 0 of s + 1
    products         | gate 0, up 0   | gate 1, up 1   | gate 2, up 2 ...

A program computes 128 pairs and 256 rows of the matrix: 128 rows each of gate and up, or 256 rows
of one matrix. Each of two groups of four warps computes half of the rows, and unpacks the numbers
that it needs. The kernel supports 16-bit dtypes, with numbers unpacked in pairs. It runs only on
compute capability 9.0, and not in the interpreter.

Elsewhere: the order of tiles (`order`).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.experts.four_bit_matrices import FourBitMatrix
from kernels.experts.four_bit_numbers import PACKED, numbers, scale_of_place, unpacking_of
from kernels.launch.capability import HOPPER, capability
from kernels.norms.gate_mul import gated


def serves(matrix: FourBitMatrix) -> bool:
    """Return whether the kernel supports this matrix."""
    return unpacking_of(matrix) == PACKED and capability(matrix.values.device) == HOPPER


@gluon.jit
def _copy_span(
    memory: gl.tuple,
    sources: gl.tuple,
    span: gl.tensor,
    HEIGHT: gl.constexpr,
    SCALES: gl.constexpr,
    STAGES: gl.constexpr,
    PLACES: gl.constexpr,
) -> None:
    """Start to copy the operands of a span. The span has PLACES runs of 32 columns, 1 to 4."""
    stage = span % STAGES
    inputs, words, scales = memory
    from_inputs, from_words, from_scales = sources
    for place in gl.static_range(PLACES):
        async_copy.async_copy_global_to_shared(
            inputs[place].index(stage), from_inputs + (span * 128 + place * 32)
        )
    for half in gl.static_range(2):
        async_copy.async_copy_global_to_shared(
            words[half].index(stage), from_words[half] + span * (HEIGHT * 32)
        )
        for group in gl.static_range(SCALES):
            async_copy.async_copy_global_to_shared(
                scales[half].index(stage * SCALES + group),
                from_scales[half] + (span * SCALES + group) * HEIGHT,
            )


@gluon.jit
def _multiply_span(
    first: gl.tensor,
    second: gl.tensor,
    memory: gl.tuple,
    stage: gl.tensor,
    A: gl.constexpr,
    MXFP4: gl.constexpr,
    SCALES: gl.constexpr,
    EVERY: gl.constexpr,
    PLACES: gl.constexpr,
) -> gl.tensor:
    """Add the products of a span to both sums. The products of the last place may still run."""
    inputs, words, scales = memory
    dtype: gl.constexpr = inputs[0].dtype
    first_words, second_words = words[0].index(stage).load(A), words[1].index(stage).load(A)
    for place in gl.static_range(PLACES):
        group = stage * SCALES + place // EVERY
        scale, zero = scale_of_place(
            scales[0].index(group).load(gl.SliceLayout(1, A)), dtype, place, MXFP4, 2
        )
        weight = numbers(first_words, scale, zero, dtype, place, MXFP4, 2)
        scale, zero = scale_of_place(
            scales[1].index(group).load(gl.SliceLayout(1, A)), dtype, place, MXFP4, 2
        )
        other = numbers(second_words, scale, zero, dtype, place, MXFP4, 2)
        part = inputs[place].index(stage).permute((1, 0))
        first = warpgroup_mma(weight, part, first, is_async=True)
        second = warpgroup_mma(other, part, second, is_async=True)
        first, second = warpgroup_mma_wait(2, deps=[first, second])
    return first, second


@gluon.jit
def _with_bias(
    acc: gl.tensor, bias: gl.tensor, feature: gl.tensor, N: gl.constexpr, HAS_BIAS: gl.constexpr
) -> gl.tensor:
    if HAS_BIAS:
        shift = gl.load(bias + feature, mask=feature < N, other=0.0)
        acc += shift.to(gl.float32)[:, None]
    return acc


@gluon.jit
def _store(
    sums: gl.tensor,
    out: gl.tensor,
    own_pairs: gl.tensor,
    start: gl.tensor,
    tokens: gl.tensor,
    N: gl.constexpr,
    TOP_K: gl.constexpr,
    GATED: gl.constexpr,
) -> None:
    """Write the sums of the features from `start` on, for pairs and features that exist."""
    OUT: gl.constexpr = gl.BlockedLayout([8, 1], [16, 2], [1, 8], [0, 1])
    H: gl.constexpr = sums.shape[0]
    ROWS: gl.constexpr = sums.shape[1]
    result = gl.convert_layout(sums.to(out.dtype.element_ty), OUT)
    pair = gl.load(own_pairs + gl.arange(0, ROWS, gl.SliceLayout(0, OUT)))
    feature = start + gl.arange(0, H, gl.SliceLayout(1, OUT))
    if GATED:
        goal = pair.to(gl.int64) * N
    else:
        goal = ((pair % TOP_K).to(gl.int64) * tokens + pair // TOP_K) * N
    kept = (feature < N)[:, None] & (pair < tokens * TOP_K)[None, :]
    gl.store(out + goal[None, :] + feature[:, None], result, mask=kept)


@gluon.jit(do_not_specialize=["tokens"])
def product_kernel(
    x: gl.tensor,
    values: gl.tensor,
    scales: gl.tensor,
    bias: gl.tensor,
    routing: gl.tensor,
    out: gl.tensor,
    pairs: gl.tensor,
    owners: gl.tensor,
    tokens: gl.tensor,
    limit: gl.tensor,
    alpha: gl.tensor,
    K: gl.constexpr,
    N: gl.constexpr,
    TOP_K: gl.constexpr,
    GATED: gl.constexpr,
    FACTORS: gl.constexpr,
    ACT: gl.constexpr,
    LIMITED: gl.constexpr,
    MXFP4: gl.constexpr,
    GROUP: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    ROWS: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """Multiply a tile of pairs by 256 rows of the matrix.

    With FACTORS 2, these are 128 rows of gate and 128 rows of up.
    """
    tile = gl.program_id(1)
    expert = gl.load(owners + tile).to(gl.int64)
    if expert >= 0:
        HEIGHT: gl.constexpr = FACTORS * N
        SPANS: gl.constexpr = (K + 127) // 128
        WHOLE: gl.constexpr = K // 128
        LEFT: gl.constexpr = K % 128 // 32  # number of 32-column runs in a partial last span
        SCALES: gl.constexpr = 1 if MXFP4 else 128 // GROUP  # words of scales per row and span
        # Number of 32-column runs per word of scales.
        EVERY: gl.constexpr = 4 if MXFP4 else GROUP // 32
        H: gl.constexpr = 128
        dtype: gl.constexpr = x.dtype.element_ty
        ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, ROWS, 16])
        A: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
        COPY: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [8, 1], [1, 0])
        LINE: gl.constexpr = gl.BlockedLayout([1], [32], [8], [0])
        boxes: gl.constexpr = gl.NVMMASharedLayout(64, 16, rank=2)
        mixed: gl.constexpr = gl.SwizzledSharedLayout(8, 2, 4, [1, 0])
        plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        inputs = (
            gl.allocate_shared_memory(dtype, [STAGES, ROWS, 32], boxes),
            gl.allocate_shared_memory(dtype, [STAGES, ROWS, 32], boxes),
            gl.allocate_shared_memory(dtype, [STAGES, ROWS, 32], boxes),
            gl.allocate_shared_memory(dtype, [STAGES, ROWS, 32], boxes),
        )
        words = (
            gl.allocate_shared_memory(gl.int16, [STAGES, H, 32], mixed),
            gl.allocate_shared_memory(gl.int16, [STAGES, H, 32], mixed),
        )
        given = (
            gl.allocate_shared_memory(gl.int32, [STAGES * SCALES, H], plain),
            gl.allocate_shared_memory(gl.int32, [STAGES * SCALES, H], plain),
        )
        memory = (inputs, words, given)

        # For missing pairs and features, existing ones are read, and nothing is written.
        start = gl.program_id(0) * (H if FACTORS == 2 else 2 * H)
        pair = gl.load(pairs + tile * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, COPY)))
        pair = gl.where(pair < tokens * TOP_K, pair, 0)
        row = (pair // TOP_K if GATED else pair).to(gl.int64)
        word = gl.arange(0, 32, gl.SliceLayout(0, COPY))
        feature = start + gl.arange(0, H, gl.SliceLayout(1, COPY))
        line = start + gl.arange(0, H, LINE)
        if FACTORS == 2:
            features = gl.minimum(feature, N - 1), gl.minimum(feature, N - 1) + N
            lines = gl.minimum(line, N - 1), gl.minimum(line, N - 1) + N
        else:
            features = gl.minimum(feature, N - 1), gl.minimum(feature + H, N - 1)
            lines = gl.minimum(line, N - 1), gl.minimum(line + H, N - 1)
        own = values + expert * (SPANS * HEIGHT * 32)
        own_scales = scales + expert * (SPANS * SCALES * HEIGHT)
        from_words = (
            own + features[0][:, None] * 32 + word[None, :],
            own + features[1][:, None] * 32 + word[None, :],
        )
        from_scales = own_scales + lines[0], own_scales + lines[1]
        sources = (x + row[:, None] * K + word[None, :], from_words, from_scales)

        first = gl.zeros([H, ROWS], gl.float32, ACC)
        second = gl.zeros([H, ROWS], gl.float32, ACC)
        for ahead in gl.static_range(2):
            if ahead < WHOLE:
                _copy_span(memory, sources, ahead, HEIGHT, SCALES, STAGES, 4)
            elif ahead < SPANS:
                _copy_span(memory, sources, ahead, HEIGHT, SCALES, STAGES, LEFT)
            async_copy.commit_group()
        for span in range(WHOLE):
            async_copy.wait_group(1)
            fence_async_shared()
            first, second = _multiply_span(
                first, second, memory, span % STAGES, A, MXFP4, SCALES, EVERY, 4
            )
            # All warps have finished with the memory of this stage. The condition WHOLE > 2 is
            # needed because a copy that is never made would not compile: its alignment is unknown.
            if WHOLE > 2 and span + 2 < WHOLE:
                _copy_span(memory, sources, span + 2, HEIGHT, SCALES, STAGES, 4)
            if LEFT > 0 and WHOLE > 1 and span + 2 == WHOLE:
                _copy_span(memory, sources, span + 2, HEIGHT, SCALES, STAGES, LEFT)
            async_copy.commit_group()
        if LEFT > 0:
            async_copy.wait_group(0)
            fence_async_shared()
            first, second = _multiply_span(
                first, second, memory, WHOLE % STAGES, A, MXFP4, SCALES, EVERY, LEFT
            )
        first, second = warpgroup_mma_wait(0, deps=[first, second])

        feature = start + gl.arange(0, H, gl.SliceLayout(1, ACC))
        own_bias = bias + expert * HEIGHT
        own_pairs = pairs + tile * ROWS
        first = _with_bias(first, own_bias, feature, N, HAS_BIAS)
        if FACTORS == 2:
            second = _with_bias(second, own_bias + N, feature, N, HAS_BIAS)
            first = gated(first, second, limit, alpha, ACT, LIMITED)
            _store(first, out, own_pairs, start, tokens, N, TOP_K, GATED)
        else:
            second = _with_bias(second, own_bias, feature + H, N, HAS_BIAS)
            if GATED:
                first = gated(first, first, limit, alpha, ACT, LIMITED)
                second = gated(second, second, limit, alpha, ACT, LIMITED)
            else:
                pair = gl.load(own_pairs + gl.arange(0, ROWS, gl.SliceLayout(0, ACC)))
                share = gl.load(routing + pair, mask=pair < tokens * TOP_K, other=0.0)
                first, second = first * share[None, :], second * share[None, :]
            _store(first, out, own_pairs, start, tokens, N, TOP_K, GATED)
            _store(second, out, own_pairs, start + H, tokens, N, TOP_K, GATED)
