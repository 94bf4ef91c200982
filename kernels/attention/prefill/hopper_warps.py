"""The three warp groups that compute 128 query rows. They synchronise only at barriers.

    producer   copies the keys of a tile, then the values, from the blocks that the table names
    consumer   64 query rows: computes scores of a tile while multiplying the previous tile's values
    consumer   64 more query rows

A tile in shared memory is `full` when TMA has written it, and `free` when both consumers have read
it. Tiles are processed from the diagonal backwards, so tiles that need a mask come first. With a
window, the last tiles need a mask too. A slot after the context has the weight 0, but may contain
NaN, and 0 x NaN is NaN. The values of such slots are therefore set to 0 first. Sinks are added
after the last tile. Device code only, for compute capability 9.0.
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


@gluon.jit
def producer(
    boxes: gl.tensor,
    keys: gl.tensor,
    values: gl.tensor,
    keys_full: gl.tensor,
    keys_free: gl.tensor,
    values_full: gl.tensor,
    values_free: gl.tensor,
    table: gl.tensor,
    top: gl.tensor,
    tiles: gl.tensor,
    last_block: gl.tensor,
    block_rows: gl.tensor,
    head_row: gl.tensor,
    value_rows: gl.tensor,
    B: gl.constexpr,
    D: gl.constexpr,
    TILE: gl.constexpr,
    COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """Copy the tiles top - 1, top - 2, ... as stages become free.

    `keys` and `values` are divided into boxes. A box is COLUMNS columns of the part of a block that
    belongs to a tile. For blocks after the context, its last block is copied.
    """
    BOX: gl.constexpr = min(B, TILE)
    BOXES: gl.constexpr = TILE // BOX
    PARTS: gl.constexpr = D // COLUMNS
    for i in range(tiles):
        stage = i % STAGES
        phase = (i // STAGES) & 1
        first_key = (top - 1 - i) * TILE
        mbarrier.wait(keys_free.index(stage), phase ^ 1)
        mbarrier.expect(keys_full.index(stage), TILE * D * 2)
        for box in gl.static_range(BOXES):
            key = first_key + box * BOX
            block = gl.load(table + gl.minimum(key // B, last_block))
            row = block * block_rows + head_row + key % B
            for part in gl.static_range(PARTS):
                tma.async_copy_global_to_shared(
                    boxes, [row, part * COLUMNS], keys_full.index(stage),
                    keys.index((stage * PARTS + part) * BOXES + box),
                )  # fmt: skip
        mbarrier.wait(values_free.index(stage), phase ^ 1)
        mbarrier.expect(values_full.index(stage), TILE * D * 2)
        for box in gl.static_range(BOXES):
            key = first_key + box * BOX
            block = gl.load(table + gl.minimum(key // B, last_block))
            row = block * block_rows + head_row + value_rows + key % B
            for part in gl.static_range(PARTS):
                tma.async_copy_global_to_shared(
                    boxes, [row, part * COLUMNS], values_full.index(stage),
                    values.index((stage * PARTS + part) * BOXES + box),
                )  # fmt: skip


@gluon.jit
def online_softmax(
    scores: gl.tensor,
    m: gl.tensor,
    total: gl.tensor,
    key: gl.tensor,
    last_key: gl.tensor,
    masked: gl.tensor,
    log2_scale: gl.tensor,
    WINDOW: gl.constexpr,
) -> gl.tensor:
    """Apply online softmax to one tile. Return (weights, m, total, factor on earlier sums)."""
    if masked:
        visible = key[None, :] <= last_key[:, None]
        if WINDOW is not None:
            visible = visible & (key[None, :] > last_key[:, None] - WINDOW)
        scores = gl.where(visible, scores, float("-inf"))
    m_new = gl.maximum(m, gl.max(scores, axis=1) * log2_scale)
    anchor = gl.where(m_new == float("-inf"), 0.0, m_new)
    shrink = gl.exp2(m - anchor)
    p = gl.exp2(scores * log2_scale - anchor[:, None])
    total = total * shrink + gl.sum(p, axis=1)
    return p, m_new, total, shrink


@gluon.jit
def _share_with_sink(m: gl.tensor, total: gl.tensor, sink: gl.tensor) -> gl.tensor:
    """Return the factors (M,) that turn sums into outputs. `sink` (M,) has natural scores."""
    sink = sink.to(gl.float32) * 1.4426950408889634
    largest = gl.maximum(m, sink)
    shrink = gl.exp2(m - largest)
    return shrink / (total * shrink + gl.exp2(sink - largest))


@gluon.jit
def consumer(
    which: gl.constexpr,
    queries: gl.tensor,
    keys: gl.tensor,
    values: gl.tensor,
    keys_full: gl.tensor,
    keys_free: gl.tensor,
    values_full: gl.tensor,
    values_free: gl.tensor,
    q: gl.tensor,
    out: gl.tensor,
    partial_lse: gl.tensor,
    sinks: gl.tensor,
    log2_scale: gl.tensor,
    top: gl.tensor,
    tiles: gl.tensor,
    prefix: gl.tensor,
    first_token: gl.tensor,
    new_tokens: gl.tensor,
    row_start: gl.tensor,
    out_start: gl.tensor,
    kv_head: gl.tensor,
    heads: gl.tensor,
    GROUP: gl.constexpr,
    D: gl.constexpr,
    TILE: gl.constexpr,
    M: gl.constexpr,
    STAGES: gl.constexpr,
    SPLIT: gl.constexpr,
    WINDOW: gl.constexpr,
    HALVES: gl.constexpr,
) -> None:
    """Compute the attention of M query rows of the block, those of group `which`.

    The tiles are those that the producer copies. With two HALVES, both consumers compute the same
    rows, each for half of the values' columns. The output of a row is written to `out`, at token
    `out_start` plus the index of the row's token. With SPLIT, the log-sum-exp is written to
    `partial_lse`. If there are no tiles, the output is 0 and the log-sum-exp -inf.
    """
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], instr_shape=[16, TILE, 16])
    COLUMNS: gl.constexpr = D // HALVES
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], instr_shape=[16, COLUMNS, 16])
    P: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [4, 1], [1, 0])
    BLOCK_Q: gl.constexpr = 2 * M // HALVES // GROUP
    dtype: gl.constexpr = q.dtype.element_ty

    group: gl.constexpr = which // HALVES
    half: gl.constexpr = which % HALVES
    member = group * M + gl.arange(0, M, gl.SliceLayout(1, WIDE))
    column = gl.arange(0, D, gl.SliceLayout(0, WIDE))
    token = first_token + member // GROUP
    real = (member < BLOCK_Q * GROUP) & (token < new_tokens)
    place = ((row_start + token).to(gl.int64) * heads + kv_head * GROUP + member % GROUP) * D
    mine = queries.index(group)
    mine.store(gl.load(q + place[:, None] + column[None, :], mask=real[:, None], other=0.0))
    fence_async_shared()

    member = group * M + gl.arange(0, M, gl.SliceLayout(1, S))
    token = first_token + member // GROUP
    last_key = prefix + token
    lane = gl.arange(0, TILE, gl.SliceLayout(0, S))
    m = gl.full([M], float("-inf"), gl.float32, gl.SliceLayout(1, S))
    total = gl.zeros([M], gl.float32, gl.SliceLayout(1, S))
    acc = gl.zeros([M, COLUMNS], gl.float32, OUT)
    nothing = gl.zeros([M, TILE], gl.float32, S)
    if tiles > 0:
        context = prefix + new_tokens
        mbarrier.wait(keys_full.index(0), 0)
        scores = warpgroup_mma(mine, keys.index(0).permute((1, 0)), nothing, use_acc=False)
        mbarrier.arrive(keys_free.index(0), count=1)
        p, m, total, _ = online_softmax(
            scores, m, total, (top - 1) * TILE + lane, last_key, True, log2_scale, WINDOW
        )
        weights = gl.convert_layout(p.to(dtype), P)
        mbarrier.wait(values_full.index(0), 0)
        if top * TILE > context:
            slot = (top - 1) * TILE + gl.arange(0, TILE, gl.SliceLayout(1, WIDE))
            v = values.index(half).load(WIDE)
            values.index(half).store(gl.where((slot < context)[:, None], v, 0.0))
            fence_async_shared()
        for i in range(1, tiles):
            stage = i % STAGES
            phase = (i // STAGES) & 1
            last_stage = (i - 1) % STAGES
            last_phase = ((i - 1) // STAGES) & 1
            first_key = (top - 1 - i) * TILE
            mbarrier.wait(keys_full.index(stage), phase)
            ahead = warpgroup_mma(
                mine, keys.index(stage).permute((1, 0)), nothing, use_acc=False, is_async=True
            )
            mbarrier.wait(values_full.index(last_stage), last_phase)
            behind = warpgroup_mma(
                weights, values.index(last_stage * HALVES + half), acc, is_async=True
            )
            scores = warpgroup_mma_wait(1, deps=[ahead])
            mbarrier.arrive(keys_free.index(stage), count=1)
            masked = first_key + TILE > prefix + first_token + 1
            if WINDOW is not None:  # for some queries, the window begins within the tile
                end = prefix + gl.minimum(first_token + BLOCK_Q, new_tokens)
                masked = masked | (first_key < end - WINDOW)
            p, m, total, shrink = online_softmax(
                scores, m, total, first_key + lane, last_key, masked, log2_scale, WINDOW
            )
            acc, weights = warpgroup_mma_wait(0, deps=[behind, weights])
            mbarrier.arrive(values_free.index(last_stage), count=1)
            acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, OUT))[:, None]
            weights = gl.convert_layout(p.to(dtype), P)
        end_stage = (tiles - 1) % STAGES
        mbarrier.wait(values_full.index(end_stage), ((tiles - 1) // STAGES) & 1)
        acc = warpgroup_mma(weights, values.index(end_stage * HALVES + half), acc)

    if not SPLIT and sinks is not None:
        share = _share_with_sink(m, total, gl.load(sinks + kv_head * GROUP + member % GROUP))
        acc = acc * gl.convert_layout(share, gl.SliceLayout(1, OUT))[:, None]
    else:
        total = gl.where(total == 0.0, 1.0, total)
        acc = acc / gl.convert_layout(total, gl.SliceLayout(1, OUT))[:, None]
    real = (member < BLOCK_Q * GROUP) & (token < new_tokens)
    slot = (out_start + token).to(gl.int64) * heads + kv_head * GROUP + member % GROUP
    if SPLIT:
        gl.store(partial_lse + slot, m + gl.log2(total), mask=real)
    slot = gl.convert_layout(slot, gl.SliceLayout(1, OUT))
    real = gl.convert_layout(real, gl.SliceLayout(1, OUT))
    column = half * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(0, OUT))
    into = out + (slot * D)[:, None] + column[None, :]
    gl.store(into, acc.to(out.dtype.element_ty), mask=real[:, None])
