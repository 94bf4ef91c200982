"""The three warp groups of a program that attends to latents on Hopper.

    producer   copies the queries, then tiles of latents with their rotated keys
    consumer   computes scores and weights, and the sums of the first half of the latents' columns
    consumer   computes the same scores and weights, and the sums of the second half

A tile in shared memory is `full` when TMA has written it, and `free` when both consumers have used
it, as keys and as values. Tiles are processed from the diagonal backwards, as in `hopper_warps`.
Device code only, for compute capability 9.0.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.attention.prefill.hopper_warps import online_softmax


@gluon.jit
def producer(
    query_boxes: gl.tensor,
    boxes: gl.tensor,
    queries: gl.tensor,
    rotated_queries: gl.tensor,
    latents: gl.tensor,
    rotated: gl.tensor,
    queries_full: gl.tensor,
    full: gl.tensor,
    free: gl.tensor,
    table: gl.tensor,
    query_row: gl.tensor,
    top: gl.tensor,
    tiles: gl.tensor,
    last_block: gl.tensor,
    block_rows: gl.tensor,
    M: gl.constexpr,
    B: gl.constexpr,
    R: gl.constexpr,
    P: gl.constexpr,
    TILE: gl.constexpr,
    COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """Copy the queries, and the tiles top - 1, top - 2, ... as stages become free.

    Instead of blocks after the context, the context's last block is copied again.
    """
    BOX: gl.constexpr = min(B, TILE)
    BOXES: gl.constexpr = TILE // BOX
    PARTS: gl.constexpr = R // COLUMNS
    mbarrier.expect(queries_full, M * (R + P) * 2)
    for part in gl.static_range(PARTS):
        tma.async_copy_global_to_shared(
            query_boxes, [query_row, part * COLUMNS], queries_full, queries.index(part)
        )
    tma.async_copy_global_to_shared(query_boxes, [query_row, R], queries_full, rotated_queries)
    for i in range(tiles):
        stage = i % STAGES
        rows = ()  # loaded before the wait, so that their latencies overlap
        for box in gl.static_range(BOXES):
            key = (top - 1 - i) * TILE + box * BOX
            block = gl.load(table + gl.minimum(key // B, last_block))
            # Gluon has no unpacking.
            rows = rows + (block * block_rows + key % B,)  # type: ignore[assignment]  # noqa: RUF005
        mbarrier.wait(free.index(stage), ((i // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(stage), TILE * (R + P) * 2)
        for box in gl.static_range(BOXES):
            for part in gl.static_range(PARTS):
                tma.async_copy_global_to_shared(
                    boxes, [rows[box], part * COLUMNS], full.index(stage),
                    latents.index((stage * PARTS + part) * BOXES + box),
                )  # fmt: skip
            tma.async_copy_global_to_shared(
                boxes, [rows[box], R], full.index(stage), rotated.index(stage * BOXES + box)
            )


@gluon.jit
def consumer(
    half: gl.constexpr,
    queries: gl.tensor,
    rotated_queries: gl.tensor,
    latents: gl.tensor,
    values: gl.tensor,
    rotated: gl.tensor,
    queries_full: gl.tensor,
    full: gl.tensor,
    free: gl.tensor,
    out: gl.tensor,
    partial_lse: gl.tensor,
    log2_scale: gl.tensor,
    top: gl.tensor,
    tiles: gl.tensor,
    prefix: gl.tensor,
    first_token: gl.tensor,
    new_tokens: gl.tensor,
    out_row: gl.tensor,
    heads: gl.tensor,
    GROUP: gl.constexpr,
    BLOCK_Q: gl.constexpr,
    M: gl.constexpr,
    R: gl.constexpr,
    TILE: gl.constexpr,
    STAGES: gl.constexpr,
    SPLIT: gl.constexpr,
) -> None:
    """Compute M query rows, for one half of the latents' columns.

    The result of a row goes to `out`, at row `out_row` for the first token's first head. With
    SPLIT, the log-sum-exp goes to `partial_lse`. Without tiles, the output is 0 and the log-sum-exp
    -inf.
    """
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], instr_shape=[16, TILE, 16])
    COLUMNS: gl.constexpr = R // 2
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], instr_shape=[16, COLUMNS, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [4, 1], [1, 0])
    dtype: gl.constexpr = latents.dtype

    member = gl.arange(0, M, gl.SliceLayout(1, S))
    token = first_token + member // GROUP
    last_key = prefix + token
    lane = gl.arange(0, TILE, gl.SliceLayout(0, S))
    m = gl.full([M], float("-inf"), gl.float32, gl.SliceLayout(1, S))
    total = gl.zeros([M], gl.float32, gl.SliceLayout(1, S))
    acc = gl.zeros([M, COLUMNS], gl.float32, OUT)
    nothing = gl.zeros([M, TILE], gl.float32, S)
    mbarrier.wait(queries_full, 0)
    if tiles > 0:
        context = prefix + new_tokens
        mbarrier.wait(full.index(0), 0)
        scores = warpgroup_mma(
            rotated_queries, rotated.index(0).permute((1, 0)), nothing, use_acc=False
        )
        scores = warpgroup_mma(queries, latents.index(0).permute((1, 0)), scores)
        p, m, total, _ = online_softmax(
            scores, m, total, (top - 1) * TILE + lane, last_key, True, log2_scale, None
        )
        weights = gl.convert_layout(p.to(dtype), WEIGHTS)
        if top * TILE > context:  # slots after the context may contain NaN, and 0 x NaN is NaN
            slot = (top - 1) * TILE + gl.arange(0, TILE, gl.SliceLayout(1, WIDE))
            own = values.index(half)
            own.store(gl.where((slot < context)[:, None], own.load(WIDE), 0.0))
            fence_async_shared()
        for i in range(1, tiles):
            stage = i % STAGES
            last_stage = (i - 1) % STAGES
            first_key = (top - 1 - i) * TILE
            mbarrier.wait(full.index(stage), (i // STAGES) & 1)
            ahead = warpgroup_mma(
                rotated_queries, rotated.index(stage).permute((1, 0)), nothing,
                use_acc=False, is_async=True,
            )  # fmt: skip
            ahead = warpgroup_mma(
                queries, latents.index(stage).permute((1, 0)), ahead, is_async=True
            )
            behind = warpgroup_mma(weights, values.index(last_stage * 2 + half), acc, is_async=True)
            scores = warpgroup_mma_wait(1, deps=[ahead])
            masked = first_key + TILE > prefix + first_token + 1
            p, m, total, shrink = online_softmax(
                scores, m, total, first_key + lane, last_key, masked, log2_scale, None
            )
            acc, weights = warpgroup_mma_wait(0, deps=[behind, weights])
            mbarrier.arrive(free.index(last_stage), count=1)
            acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, OUT))[:, None]
            weights = gl.convert_layout(p.to(dtype), WEIGHTS)
        acc = warpgroup_mma(weights, values.index((tiles - 1) % STAGES * 2 + half), acc)

    total = gl.where(total == 0.0, 1.0, total)
    acc = acc / gl.convert_layout(total, gl.SliceLayout(1, OUT))[:, None]
    real = (member < BLOCK_Q * GROUP) & (token < new_tokens)
    place = (out_row + member // GROUP * heads + member % GROUP).to(gl.int64)
    if SPLIT:
        gl.store(partial_lse + place, m + gl.log2(total), mask=real)
    place = gl.convert_layout(place, gl.SliceLayout(1, OUT))
    real = gl.convert_layout(real, gl.SliceLayout(1, OUT))
    column = half * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(0, OUT))
    into = out + (place * R)[:, None] + column[None, :]
    gl.store(into, acc.to(out.dtype.element_ty), mask=real[:, None])
