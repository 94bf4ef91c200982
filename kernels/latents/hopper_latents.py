"""The attention to latents for Hopper, with TMA and WGMMA: a tile is read once, for all uses.

A program computes 64 query rows with the warps of `hopper_latent_warps`: tokens of one row of the
batch, with GROUP heads of each. The kernel supports 16-bit numbers, rotated keys of 64 numbers, and
latents of 256 or 512. It runs only on compute capability 9.0, and not in the interpreter.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.attention.attention_tile import LOG2_E
from kernels.attention.batch_layout import BatchLayout
from kernels.attention.prefill.hopper_prefill import (
    first_query_block,
    num_slots,
    row_of_query_block,
)
from kernels.latents.hopper_latent_warps import consumer, producer
from kernels.latents.latent_shape import LatentShape
from kernels.latents.query_blocks import QueryBlocks, divide
from kernels.launch.capability import HOPPER, capability

_QUERIES = 64  # query rows of a program
_TILE, _STAGES = 32, 4  # measured on an H200 (decision 269)
_DECODE_PROGRAMS = 1  # number of programs of decodes for each multiprocessor
_COLUMNS = 64  # columns of a copied box: 128 bytes, the width of a swizzle in shared memory
_BOXES = gl.NVMMASharedLayout(128, 16, rank=2)
_REGISTERS = 168  # registers of a thread at launch; later a producer has 40, a consumer up to 232


@gluon.jit(do_not_specialize=["first_row", "end_row", "tokens", "table_stride"])
def _hopper_latents_kernel(
    query_boxes: gl.tensor,
    boxes: gl.tensor,
    query_starts: gl.tensor,
    context_lens: gl.tensor,
    block_tables: gl.tensor,
    out: gl.tensor,
    partial_lse: gl.tensor,
    log2_scale: gl.tensor,
    first_row: gl.tensor,
    end_row: gl.tensor,
    tokens: gl.tensor,
    table_stride: gl.tensor,
    block_rows: gl.tensor,
    GROUP: gl.constexpr,
    BLOCK_Q: gl.constexpr,
    M: gl.constexpr,
    B: gl.constexpr,
    R: gl.constexpr,
    P: gl.constexpr,
    TILE: gl.constexpr,
    COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
    SPLIT: gl.constexpr,
    DECODES: gl.constexpr,
) -> None:
    query_block = gl.num_programs(0) - 1 - gl.program_id(0)
    row, first_token = first_row + query_block, 0
    if not DECODES:
        row = row_of_query_block(query_starts, query_block, first_row, end_row, BLOCK_Q)
        before = first_query_block(query_starts, row, first_row, BLOCK_Q)
        first_token = (query_block - before) * BLOCK_Q
    row_start = gl.load(query_starts + row)
    new_tokens = gl.load(query_starts + row + 1) - row_start
    if first_token < new_tokens:
        context = gl.load(context_lens + row)
        prefix = context - new_tokens
        heads = gl.num_programs(1) * GROUP
        query_row = (row_start + first_token - first_row) * heads + gl.program_id(1) * GROUP
        end = prefix + gl.minimum(first_token + BLOCK_Q, new_tokens)
        top = gl.maximum((end + TILE - 1) // TILE, 0)
        tiles, out_row = top, query_row
        if SPLIT:
            each = (tiles + gl.num_programs(2) - 1) // gl.num_programs(2)
            bottom = gl.program_id(2) * each
            top = gl.minimum(bottom + each, top)
            tiles = gl.maximum(top - bottom, 0)
            out_row = gl.program_id(2) * tokens * heads + query_row

        layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
        dtype: gl.constexpr = boxes.dtype
        BOX: gl.constexpr = min(B, TILE)
        BOXES: gl.constexpr = STAGES * (TILE // BOX)
        PARTS: gl.constexpr = R // COLUMNS
        queries = gl.allocate_shared_memory(dtype, [M, R], layout)
        rotated_queries = gl.allocate_shared_memory(dtype, [M, P], layout)
        latents = gl.allocate_shared_memory(dtype, [STAGES, TILE, R], layout)
        rotated = gl.allocate_shared_memory(dtype, [STAGES, TILE, P], layout)
        barrier: gl.constexpr = mbarrier.MBarrierLayout()
        queries_full = gl.allocate_shared_memory(gl.int64, [1], barrier)
        full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
        free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
        mbarrier.init(queries_full, count=1)
        for stage in gl.static_range(STAGES):
            mbarrier.init(full.index(stage), count=1)
            mbarrier.init(free.index(stage), count=2)
        values = latents._reinterpret(dtype, [STAGES * 2, TILE, R // 2], layout)
        latent_boxes = latents._reinterpret(dtype, [BOXES * PARTS, BOX, COLUMNS], layout)
        rotated_boxes = rotated._reinterpret(dtype, [BOXES, BOX, COLUMNS], layout)
        own_boxes = queries._reinterpret(dtype, [PARTS, M, COLUMNS], layout)
        last_block = gl.maximum((context - 1) // B, 0)
        table = block_tables + row.to(gl.int64) * table_stride
        gl.warp_specialize(
            [
                (consumer, (
                    0, queries, rotated_queries, latents, values, rotated, queries_full, full,
                    free, out, partial_lse, log2_scale, top, tiles, prefix, first_token,
                    new_tokens, out_row, heads, GROUP, BLOCK_Q, M, R, TILE, STAGES, SPLIT,
                )),
                (consumer, (
                    1, queries, rotated_queries, latents, values, rotated, queries_full, full,
                    free, out, partial_lse, log2_scale, top, tiles, prefix, first_token,
                    new_tokens, out_row, heads, GROUP, BLOCK_Q, M, R, TILE, STAGES, SPLIT,
                )),
                (producer, (
                    query_boxes, boxes, own_boxes, rotated_queries, latent_boxes, rotated_boxes,
                    queries_full, full, free, table, query_row, top, tiles, last_block, block_rows,
                    M, B, R, P, TILE, COLUMNS, STAGES,
                )),
            ],
            [4, 1],
            [232, 40],
        )  # fmt: skip


def serves(q: Tensor, kv: Tensor, shape: LatentShape) -> bool:
    """Return whether the kernel supports the device, the dtype and the sizes."""
    return (
        capability(q.device) == HOPPER
        and kv.dtype == q.dtype
        and q.element_size() == 2
        and shape.rope == _COLUMNS
        and shape.rank in (256, 512)
        and kv.stride(0) % shape.latent == 0
    )


def query_blocks(q: Tensor, layout: BatchLayout, rows: tuple[int, int]) -> QueryBlocks:
    """Divide the queries q (t, H, R + P) of the rows into the kernel's blocks.

    A block is copied as contiguous rows, so one with several tokens has all heads.
    """

    def tokens(heads: int) -> int:
        return _QUERIES // heads if heads == q.shape[1] else 1

    return divide(q, layout, rows, _QUERIES, tokens, _DECODE_PROGRAMS)


def attend(
    q: Tensor,
    kv: Tensor,
    layout: BatchLayout,
    shape: LatentShape,
    blocks: QueryBlocks,
    out: Tensor,
    lse: Tensor,
) -> None:
    """Launch the kernel. Each split of a block writes to `out` and `lse`."""
    tokens, heads, size = q.shape
    queries = TensorDescriptor(q, [tokens * heads, size], [size, 1], [_QUERIES, _COLUMNS], _BOXES)
    box = [min(kv.shape[3], _TILE), _COLUMNS]
    latents = TensorDescriptor(kv, [num_slots(kv), size], [size, 1], box, _BOXES)
    _hopper_latents_kernel[(blocks.count, heads // blocks.heads, blocks.splits)](
        queries,
        latents,
        layout.query_starts,
        layout.context_lens,
        layout.block_tables,
        out,
        lse,
        shape.scale * LOG2_E,
        blocks.first,
        blocks.end,
        tokens,
        layout.block_tables.stride(0),
        kv.stride(0) // size,
        GROUP=blocks.heads,
        BLOCK_Q=blocks.tokens,
        M=_QUERIES,
        B=kv.shape[3],
        R=shape.rank,
        P=shape.rope,
        TILE=_TILE,
        COLUMNS=_COLUMNS,
        STAGES=_STAGES,
        SPLIT=blocks.splits > 1,
        DECODES=blocks.are_decodes,
        num_warps=4,
        maxnreg=_REGISTERS,
    )
