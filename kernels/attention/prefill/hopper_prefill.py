"""The prefill attention kernel for Hopper, with TMA and WGMMA.

The kernel computes the same partial outputs as `prefill_attention`, for the same query blocks and
splits, with the warps of `hopper_warps`. For TMA, the pool is one matrix of slots, from which it
copies a block of one head as a box. The kernel supports 16-bit numbers and head dims 64, 128 and
256, with windows and sinks, but no soft cap. It runs only on compute capability 9.0, and not in the
interpreter.

Elsewhere: the choice of the kernel (`prefill_attention`).
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.attention.attention_tile import LOG2_E
from kernels.attention.batch_layout import BatchLayout
from kernels.attention.prefill.hopper_warps import consumer, producer
from kernels.attention.tuning import PrefillTuning
from kernels.attention.variant import AttentionVariant

_COLUMNS = 64  # columns of a copied box: 128 bytes, the width of a swizzle in shared memory
_BOXES = gl.NVMMASharedLayout(128, 16, rank=2)
_REGISTERS = 168  # registers of a thread at launch; later a producer has 40, a consumer up to 232


@gluon.jit
def first_query_block(
    query_starts: gl.tensor, row: gl.tensor, first: gl.tensor, BLOCK_Q: gl.constexpr
) -> gl.tensor:
    """Return the index of the first query block of `row`, counted from the row `first`."""
    return (gl.load(query_starts + row) - first) // BLOCK_Q + row - first


@gluon.jit
def row_of_query_block(
    query_starts: gl.tensor,
    query_block: gl.tensor,
    first_row: gl.tensor,
    end_row: gl.tensor,
    BLOCK_Q: gl.constexpr,
) -> gl.tensor:
    """Return the row, from `first_row` up to `end_row`, that has the query block."""
    low, high = first_row, end_row
    while low + 1 < high:
        middle = (low + high) // 2
        if first_query_block(query_starts, middle, first_row, BLOCK_Q) <= query_block:
            low = middle
        else:
            high = middle
    return low


@gluon.jit(do_not_specialize=["first_row", "end_row", "tokens", "table_stride"])
def _hopper_prefill_kernel(
    boxes: gl.tensor,
    q: gl.tensor,
    query_starts: gl.tensor,
    context_lens: gl.tensor,
    block_tables: gl.tensor,
    out: gl.tensor,
    partial_lse: gl.tensor,
    sinks: gl.tensor,
    log2_scale: gl.tensor,
    first_row: gl.tensor,
    end_row: gl.tensor,
    tokens: gl.tensor,
    table_stride: gl.tensor,
    block_rows: gl.tensor,
    value_rows: gl.tensor,
    head_rows: gl.tensor,
    GROUP: gl.constexpr,
    B: gl.constexpr,
    D: gl.constexpr,
    TILE: gl.constexpr,
    M: gl.constexpr,
    COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
    SPLIT: gl.constexpr,
    WINDOW: gl.constexpr,
    HALVES: gl.constexpr,
) -> None:
    BLOCK_Q: gl.constexpr = 2 * M // HALVES // GROUP
    query_block = gl.num_programs(0) - 1 - gl.program_id(0)
    kv_head = gl.program_id(1)
    heads = gl.num_programs(1) * GROUP
    row = row_of_query_block(query_starts, query_block, first_row, end_row, BLOCK_Q)
    row_start = gl.load(query_starts + row)
    new_tokens = gl.load(query_starts + row + 1) - row_start
    first_token = (query_block - first_query_block(query_starts, row, first_row, BLOCK_Q)) * BLOCK_Q
    if first_token < new_tokens:
        context = gl.load(context_lens + row)
        prefix = context - new_tokens
        end = prefix + gl.minimum(first_token + BLOCK_Q, new_tokens)
        top = gl.maximum((end + TILE - 1) // TILE, 0)
        tiles = top
        bottom = 0
        if WINDOW is not None:
            bottom = gl.maximum(prefix + first_token + 1 - WINDOW, 0) // TILE
            tiles = top - bottom
        out_start = row_start
        if SPLIT:
            each = (tiles + gl.num_programs(2) - 1) // gl.num_programs(2)
            low_tile = bottom + gl.program_id(2) * each
            top = gl.minimum(low_tile + each, top)
            tiles = gl.maximum(top - low_tile, 0)
            out_start = gl.program_id(2) * tokens + row_start - first_row

        layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
        dtype: gl.constexpr = q.dtype.element_ty
        BOX: gl.constexpr = min(B, TILE)
        BOXES: gl.constexpr = STAGES * (TILE // BOX) * (D // COLUMNS)
        queries = gl.allocate_shared_memory(dtype, [2 // HALVES, M, D], layout)
        keys = gl.allocate_shared_memory(dtype, [STAGES, TILE, D], layout)
        values = gl.allocate_shared_memory(dtype, [STAGES * HALVES, TILE, D // HALVES], layout)
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
                (consumer, (
                    0, queries, keys, values, keys_full, keys_free, values_full, values_free,
                    q, out, partial_lse, sinks, log2_scale, top, tiles, prefix, first_token,
                    new_tokens, row_start, out_start, kv_head, heads, GROUP, D, TILE, M, STAGES,
                    SPLIT, WINDOW, HALVES,
                )),
                (consumer, (
                    1, queries, keys, values, keys_full, keys_free, values_full, values_free,
                    q, out, partial_lse, sinks, log2_scale, top, tiles, prefix, first_token,
                    new_tokens, row_start, out_start, kv_head, heads, GROUP, D, TILE, M, STAGES,
                    SPLIT, WINDOW, HALVES,
                )),
                (producer, (
                    boxes, key_boxes, value_boxes, keys_full, keys_free, values_full, values_free,
                    table, top, tiles, last_block, block_rows, kv_head * head_rows, value_rows,
                    B, D, TILE, COLUMNS, STAGES,
                )),
            ],
            [4, 1],
            [232, 40],
        )  # fmt: skip


def num_slots(kv: Tensor) -> int:
    """Count the slots from the first to the last one of a layer of the pool (N, 2, Hkv, B, D).

    The slots of other layers between them count too.
    """
    last = sum((size - 1) * stride for size, stride in zip(kv.shape[:4], kv.stride(), strict=False))
    return last // kv.shape[4] + 1


def attend(
    q: Tensor,
    kv: Tensor,
    layout: BatchLayout,
    variant: AttentionVariant,
    sinks: Tensor | None,
    tuning: PrefillTuning,
    grid: tuple[int, int],
    out: Tensor,
    lse: Tensor,
) -> None:
    """Launch the kernel over `grid` (query blocks, splits). Each split writes to out and lse."""
    tokens, heads, head_dim = q.shape
    kv_heads, block_size = kv.shape[2:4]
    block_rows, value_rows, head_rows = (stride // head_dim for stride in kv.stride()[:3])
    shape, box = [num_slots(kv), head_dim], [min(block_size, tuning.tile), _COLUMNS]
    boxes = TensorDescriptor(kv, shape, [head_dim, 1], box, _BOXES)
    blocks, splits = grid
    _hopper_prefill_kernel[(blocks, kv_heads, splits)](
        boxes,
        q,
        layout.query_starts,
        layout.context_lens,
        layout.block_tables,
        out,
        lse,
        sinks,
        variant.scale * LOG2_E,
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
        M=tuning.queries * tuning.halves // 2,
        COLUMNS=_COLUMNS,
        STAGES=tuning.stages,
        SPLIT=splits > 1,
        WINDOW=variant.window,
        HALVES=tuning.halves,
        num_warps=tuning.warps,
        maxnreg=_REGISTERS,
    )
