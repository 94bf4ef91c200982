"""Attention of several new tokens over paged keys, for Hopper's copy engine and matrix units.

What `prefill_attention` computes, by three groups of warps that wait for each other only
through barriers in shared memory:

    copier     the blocks of a tile of keys, then of values, each by its id from the table
    attender   64 query rows: scores of the next tile while values of the last are multiplied
    attender   64 more

Tiles are walked from the diagonal down, so what needs a mask comes first. A slot behind the
context may hold NaN: its values are cleared in shared memory before they meet a zero weight.
Serves 16-bit numbers and head dims 64 and 128; runs on compute capability 9.0 alone, and not
in the interpreter. Does not know when it is the right one; `prefill_attention` does.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.batch_layout import BatchLayout
from kernels.tuning import PrefillTuning

_COLUMNS = 64  # of one copied box: the 128 bytes that shared memory is swizzled by
_REGISTERS = 168  # a thread at launch; the copier gives most of its own to the attenders


@gluon.jit
def _copier(
    boxes, keys, values, keys_full, keys_free, values_full, values_free,
    table, top, tiles, last_block, block_rows, head_row, value_rows,
    B: gl.constexpr, D: gl.constexpr, TILE: gl.constexpr, COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
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
def _soften(scores, m, total, key, last_key, masked, log2_scale):
    """Online softmax of one tile: (weights, m, total, what earlier sums shrink by)."""
    if masked:
        visible = key[None, :] <= last_key[:, None]
        scores = gl.where(visible, scores, float("-inf"))
    m_new = gl.maximum(m, gl.max(scores, axis=1) * log2_scale)
    anchor = gl.where(m_new == float("-inf"), 0.0, m_new)
    shrink = gl.exp2(m - anchor)
    p = gl.exp2(scores * log2_scale - anchor[:, None])
    total = total * shrink + gl.sum(p, axis=1)
    return p, m_new, total, shrink


@gluon.jit
def _attender(
    which: gl.constexpr,
    queries, keys, values, keys_full, keys_free, values_full, values_free,
    q, out, partial_lse, log2_scale, top, tiles, prefix, first_token, new_tokens, row_start,
    out_start, kv_head, heads,
    GROUP: gl.constexpr, D: gl.constexpr, TILE: gl.constexpr, M: gl.constexpr,
    STAGES: gl.constexpr, SPLIT: gl.constexpr,
):  # fmt: skip
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], instr_shape=[16, TILE, 16])
    O: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], instr_shape=[16, D, 16])
    P: gl.constexpr = gl.DotOperandLayout(0, O, 2)
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    BLOCK_Q: gl.constexpr = 2 * M // GROUP
    dtype: gl.constexpr = q.dtype.element_ty

    member = which * M + gl.arange(0, M, gl.SliceLayout(1, WIDE))
    column = gl.arange(0, D, gl.SliceLayout(0, WIDE))
    token = first_token + member // GROUP
    real = (member < BLOCK_Q * GROUP) & (token < new_tokens)
    place = ((row_start + token).to(gl.int64) * heads + kv_head * GROUP + member % GROUP) * D
    mine = queries.index(which)
    mine.store(gl.load(q + place[:, None] + column[None, :], mask=real[:, None], other=0.0))
    fence_async_shared()

    member = which * M + gl.arange(0, M, gl.SliceLayout(1, S))
    token = first_token + member // GROUP
    last_key = prefix + token
    lane = gl.arange(0, TILE, gl.SliceLayout(0, S))
    m = gl.full([M], float("-inf"), gl.float32, gl.SliceLayout(1, S))
    total = gl.zeros([M], gl.float32, gl.SliceLayout(1, S))
    acc = gl.zeros([M, D], gl.float32, O)
    nothing = gl.zeros([M, TILE], gl.float32, S)
    if tiles > 0:
        context = prefix + new_tokens
        mbarrier.wait(keys_full.index(0), 0)
        scores = warpgroup_mma(mine, keys.index(0).permute((1, 0)), nothing, use_acc=False)
        mbarrier.arrive(keys_free.index(0), count=1)
        p, m, total, _ = _soften(
            scores, m, total, (top - 1) * TILE + lane, last_key, True, log2_scale
        )
        weights = gl.convert_layout(p.to(dtype), P)
        mbarrier.wait(values_full.index(0), 0)
        if top * TILE > context:
            slot = (top - 1) * TILE + gl.arange(0, TILE, gl.SliceLayout(1, WIDE))
            v = values.index(0).load(WIDE)
            values.index(0).store(gl.where((slot < context)[:, None], v, 0.0))
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
            behind = warpgroup_mma(weights, values.index(last_stage), acc, is_async=True)
            scores = warpgroup_mma_wait(1, deps=[ahead])
            mbarrier.arrive(keys_free.index(stage), count=1)
            masked = first_key + TILE > prefix + first_token + 1
            p, m, total, shrink = _soften(
                scores, m, total, first_key + lane, last_key, masked, log2_scale
            )
            acc, weights = warpgroup_mma_wait(0, deps=[behind, weights])
            mbarrier.arrive(values_free.index(last_stage), count=1)
            acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, O))[:, None]
            weights = gl.convert_layout(p.to(dtype), P)
        end_stage = (tiles - 1) % STAGES
        mbarrier.wait(values_full.index(end_stage), ((tiles - 1) // STAGES) & 1)
        acc = warpgroup_mma(weights, values.index(end_stage), acc)

    total = gl.where(total == 0.0, 1.0, total)
    acc = acc / gl.convert_layout(total, gl.SliceLayout(1, O))[:, None]
    real = (member < BLOCK_Q * GROUP) & (token < new_tokens)
    slot = (out_start + token).to(gl.int64) * heads + kv_head * GROUP + member % GROUP
    if SPLIT:
        gl.store(partial_lse + slot, m + gl.log2(total), mask=real)
    slot = gl.convert_layout(slot, gl.SliceLayout(1, O))
    real = gl.convert_layout(real, gl.SliceLayout(1, O))
    column = gl.arange(0, D, gl.SliceLayout(0, O))
    into = out + (slot * D)[:, None] + column[None, :]
    gl.store(into, acc.to(out.dtype.element_ty), mask=real[:, None])


@gluon.jit
def _first_query_block(query_starts, row, first, BLOCK_Q: gl.constexpr):
    return (gl.load(query_starts + row) - first) // BLOCK_Q + row - first


@gluon.jit(do_not_specialize=["first_row", "end_row", "tokens", "table_stride"])
def _kernel(
    boxes, q, query_starts, context_lens, block_tables, out, partial_lse, log2_scale,
    first_row, end_row, tokens, table_stride, block_rows, value_rows, head_rows,
    GROUP: gl.constexpr, B: gl.constexpr, D: gl.constexpr, TILE: gl.constexpr, M: gl.constexpr,
    COLUMNS: gl.constexpr, STAGES: gl.constexpr, SPLIT: gl.constexpr,
):  # fmt: skip
    BLOCK_Q: gl.constexpr = 2 * M // GROUP
    query_block = gl.num_programs(0) - 1 - gl.program_id(0)
    kv_head = gl.program_id(1)
    heads = gl.num_programs(1) * GROUP
    low, high = first_row, end_row
    while low + 1 < high:
        middle = (low + high) // 2
        if _first_query_block(query_starts, middle, first_row, BLOCK_Q) <= query_block:
            low = middle
        else:
            high = middle
    row = low
    row_start = gl.load(query_starts + row)
    new_tokens = gl.load(query_starts + row + 1) - row_start
    first_token = (query_block - _first_query_block(query_starts, row, first_row, BLOCK_Q)) * BLOCK_Q
    if first_token < new_tokens:
        context = gl.load(context_lens + row)
        prefix = context - new_tokens
        end = prefix + gl.minimum(first_token + BLOCK_Q, new_tokens)
        top = gl.maximum((end + TILE - 1) // TILE, 0)
        tiles = top
        out_start = row_start
        if SPLIT:
            each = (top + gl.num_programs(2) - 1) // gl.num_programs(2)
            low_tile = gl.program_id(2) * each
            top = gl.minimum(low_tile + each, top)
            tiles = gl.maximum(top - low_tile, 0)
            out_start = gl.program_id(2) * tokens + row_start - first_row

        layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
        dtype: gl.constexpr = q.dtype.element_ty
        BOX: gl.constexpr = min(B, TILE)
        BOXES: gl.constexpr = STAGES * (TILE // BOX) * (D // COLUMNS)
        queries = gl.allocate_shared_memory(dtype, [2, M, D], layout)
        keys = gl.allocate_shared_memory(dtype, [STAGES, TILE, D], layout)
        values = gl.allocate_shared_memory(dtype, [STAGES, TILE, D], layout)
        barrier: gl.constexpr = mbarrier.MBarrierLayout()
        keys_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
        keys_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
        values_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
        values_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
        for stage in gl.static_range(STAGES):
            mbarrier.init(keys_full.index(stage), count=1)
            mbarrier.init(keys_free.index(stage), count=2)
            mbarrier.init(values_full.index(stage), count=1)
            mbarrier.init(values_free.index(stage), count=2)
        key_boxes = keys._reinterpret(dtype, [BOXES, BOX, COLUMNS], layout)
        value_boxes = values._reinterpret(dtype, [BOXES, BOX, COLUMNS], layout)
        last_block = gl.maximum((context - 1) // B, 0)
        table = block_tables + row.to(gl.int64) * table_stride
        gl.warp_specialize(
            [
                (_attender, (
                    0, queries, keys, values, keys_full, keys_free, values_full, values_free,
                    q, out, partial_lse, log2_scale, top, tiles, prefix, first_token, new_tokens,
                    row_start, out_start, kv_head, heads, GROUP, D, TILE, M, STAGES, SPLIT,
                )),
                (_attender, (
                    1, queries, keys, values, keys_full, keys_free, values_full, values_free,
                    q, out, partial_lse, log2_scale, top, tiles, prefix, first_token, new_tokens,
                    row_start, out_start, kv_head, heads, GROUP, D, TILE, M, STAGES, SPLIT,
                )),
                (_copier, (
                    boxes, key_boxes, value_boxes, keys_full, keys_free, values_full, values_free,
                    table, top, tiles, last_block, block_rows, kv_head * head_rows, value_rows,
                    B, D, TILE, COLUMNS, STAGES,
                )),
            ],
            [4, 1],
            [232, 40],
        )  # fmt: skip


def attend(
    q: Tensor,
    kv: Tensor,
    layout: BatchLayout,
    log2_scale: float,
    tuning: PrefillTuning,
    grid: tuple[int, int],
    out: Tensor,
    lse: Tensor,
) -> None:
    """`grid`: query blocks and splits; with splits, out and lse get one part for each."""
    tokens, heads, head_dim = q.shape
    count, _, kv_heads, block_size, _ = kv.shape
    block_rows, value_rows, head_rows = (stride // head_dim for stride in kv.stride()[:3])
    # All slots of the pool as rows of one matrix, from this layer's first on.
    rows = (count - 1) * block_rows + value_rows + kv_heads * head_rows
    boxes = TensorDescriptor(
        kv,
        [rows, head_dim],
        [head_dim, 1],
        [min(block_size, tuning.tile), _COLUMNS],
        gl.NVMMASharedLayout(128, 16, rank=2),
    )
    blocks, splits = grid
    _kernel[(blocks, kv_heads, splits)](
        boxes,
        q,
        layout.query_starts,
        layout.context_lens,
        layout.block_tables,
        out,
        lse,
        log2_scale,
        layout.num_decodes,
        layout.num_rows,
        tokens - layout.num_decodes,
        layout.block_tables.stride(0),
        block_rows,
        value_rows,
        head_rows,
        GROUP=heads // kv_heads,
        B=block_size,
        D=head_dim,
        TILE=tuning.tile,
        M=tuning.queries // 2,
        COLUMNS=_COLUMNS,
        STAGES=tuning.stages,
        SPLIT=splits > 1,
        num_warps=tuning.warps,
        maxnreg=_REGISTERS,
    )
