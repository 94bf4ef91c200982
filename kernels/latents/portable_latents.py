"""The attention to latents for any device, dtype and size.

One program computes a query block: BLOCK_Q new tokens of a row, with GROUP of their heads. All
heads read the same latents, tile by tile. A tile is loaded only once for scores and sums. The
softmax is computed as in `attention_tile`. Decodes are query blocks of one token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.attention_tile import LOG2_E, average
from kernels.attention.batch_layout import BatchLayout
from kernels.attention.kv.fp8_kv import is_fp8
from kernels.latents.latent_shape import LatentShape
from kernels.latents.query_blocks import QueryBlocks, divide
from kernels.launch.capability import HOPPER, capability
from kernels.launch.rounding import next_power_of_2
from kernels.launch.row_blocks import first_row_block, row_of_block

_MIN_QUERIES = 16  # minimum number of rows of an operand of the matrix units
_MAX_HEADS = 32  # maximum number of heads of a program
_DECODE_PROGRAMS = 2  # number of programs of decodes on a multiprocessor at the same time


@dataclass(frozen=True, slots=True)
class _Tuning:
    queries: int  # number of query rows of a program; each head counts
    tile: int
    warps: int
    stages: int


def _tuning(q: Tensor, heads: int, *, decodes: bool) -> _Tuning:
    least = max(next_power_of_2(heads), _MIN_QUERIES)
    if q.dtype == torch.float32:
        return _Tuning(least, 16, 8, 1)
    # These sizes were measured on an H200 with 20 heads.
    if decodes:
        return _Tuning(least, 32, 4, 2)
    # Two tiles of 64 keys need more shared memory than other devices have.
    tile = 64 if capability(q.device) == HOPPER else 32
    return _Tuning(max(least, 64), tile, 8, 2)


@triton.jit
def _tile(
    queries: tl.tensor,
    rotated: tl.tensor,
    acc: tl.tensor,
    m: tl.tensor,
    total: tl.tensor,
    kv: tl.tensor,
    table: tl.tensor,
    start: tl.tensor,
    end: tl.tensor,
    last_key: tl.tensor,
    log2_scale: tl.tensor,
    block_stride: tl.tensor,
    B: tl.constexpr,
    R: tl.constexpr,
    P: tl.constexpr,
    TILE: tl.constexpr,
    SCALED: tl.constexpr,
) -> tl.tensor:
    """Add the latents [start, start + TILE), up to `end`, to the state (acc, m, total)."""
    index = tl.arange(0, TILE)
    key = start + index
    real = key < end
    slot = index % B + (start % B if TILE < B else 0)
    block = tl.load(table + start // B + index // B, mask=real, other=0).to(tl.int64)
    address = kv + (block * block_stride + slot * (R + P))[:, None]
    latent = tl.load(address + tl.arange(0, R)[None, :], mask=real[:, None], other=0.0)
    shared = tl.load(address + R + tl.arange(0, P)[None, :], mask=real[:, None], other=0.0)
    if SCALED:  # via float32, because direct conversion to bfloat16 handles one number at a time
        latent = latent.to(tl.float32).to(queries.dtype)
        shared = shared.to(tl.float32).to(queries.dtype)
    scores = tl.dot(rotated, tl.trans(shared), input_precision="ieee")
    scores = tl.dot(queries, tl.trans(latent), scores, input_precision="ieee")
    if SCALED:
        of_block = (kv + B * (R + P)).to(tl.pointer_type(tl.bfloat16), bitcast=True)
        own = of_block + block * (block_stride // 2) + slot
        scale = tl.load(own, mask=real, other=0.0).to(tl.float32)
        scores *= scale[None, :]
    scores = tl.where(key[None, :] <= last_key[:, None], scores, float("-inf"))
    m_new = tl.maximum(m, tl.max(scores, axis=1) * log2_scale)
    anchor = tl.where(m_new == float("-inf"), 0.0, m_new)
    shrink = tl.exp2(m - anchor)
    p = tl.exp2(scores * log2_scale - anchor[:, None])
    total = total * shrink + tl.sum(p, axis=1)
    if SCALED:
        p *= scale[None, :]
    sums = tl.dot(p.to(latent.dtype), latent, input_precision="ieee")
    return acc * shrink[:, None] + sums, m_new, total


@triton.jit(do_not_specialize=["first_row", "end_row", "tokens", "table_stride"])
def _attend_latents_kernel(
    q: tl.tensor,
    kv: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    out: tl.tensor,
    partial_lse: tl.tensor,
    log2_scale: tl.tensor,
    first_row: tl.tensor,
    end_row: tl.tensor,
    tokens: tl.tensor,
    table_stride: tl.tensor,
    block_stride: tl.tensor,
    GROUP: tl.constexpr,
    B: tl.constexpr,
    R: tl.constexpr,
    P: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    DECODES: tl.constexpr,
    SCALED: tl.constexpr,
) -> None:
    # The last blocks of a row have the most keys, so they start first.
    query_block = tl.num_programs(0) - 1 - tl.program_id(0)
    row, first_token = first_row + query_block, 0
    if not DECODES:
        row = row_of_block(query_starts, query_block, first_row, end_row, BLOCK_Q)
        before = first_row_block(query_starts, row, first_row, BLOCK_Q)
        first_token = (query_block - before) * BLOCK_Q
    row_start = tl.load(query_starts + row)
    new_tokens = tl.load(query_starts + row + 1) - row_start
    if first_token < new_tokens:
        context = tl.load(context_lens + row)
        prefix = context - new_tokens
        member = tl.arange(0, BLOCK_M)
        token = first_token + member // GROUP
        real = (member < BLOCK_Q * GROUP) & (token < new_tokens)
        head = tl.program_id(1) * GROUP + member % GROUP
        heads = tl.num_programs(1) * GROUP
        place = (row_start + token - first_row).to(tl.int64) * heads + head
        numbers, shared = tl.arange(0, R)[None, :], tl.arange(0, P)[None, :]
        own = q + (place * (R + P))[:, None]
        queries = tl.load(own + numbers, mask=real[:, None], other=0.0)
        rotated = tl.load(own + R + shared, mask=real[:, None], other=0.0)
        acc = tl.zeros([BLOCK_M, R], dtype=tl.float32)
        m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
        total = tl.zeros([BLOCK_M], dtype=tl.float32)
        last_key = prefix + token
        start = 0
        end = tl.minimum(prefix + first_token + BLOCK_Q, context)
        if SPLIT:
            keys = tl.cdiv(tl.cdiv(end, TILE), tl.num_programs(2)) * TILE
            start = tl.program_id(2) * keys
            end = tl.minimum(start + keys, end)
        table = block_tables + row.to(tl.int64) * table_stride
        for tile in tl.range(start, end, TILE):
            acc, m, total = _tile(
                queries, rotated, acc, m, total, kv, table, tile, end, last_key, log2_scale,
                block_stride, B, R, P, TILE, SCALED,
            )  # fmt: skip
        if SPLIT:
            place = tl.program_id(2).to(tl.int64) * tokens * heads + place
            lse = m + tl.log2(tl.where(total == 0.0, 1.0, total))
            tl.store(partial_lse + place, lse, mask=real)
        result = average(acc, total).to(out.dtype.element_ty)
        tl.store(out + (place * R)[:, None] + numbers, result, mask=real[:, None])


def query_blocks(q: Tensor, layout: BatchLayout, rows: tuple[int, int]) -> QueryBlocks:
    """Divide the queries q (t, H, R + P) of the rows into the kernel's blocks."""

    def tokens(heads: int) -> int:
        return _tuning(q, heads, decodes=False).queries // heads

    return divide(q, layout, rows, _MAX_HEADS, tokens, _DECODE_PROGRAMS)


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
    tokens, heads, _ = q.shape
    tuning = _tuning(q, blocks.heads, decodes=blocks.are_decodes)
    _attend_latents_kernel[(blocks.count, heads // blocks.heads, blocks.splits)](
        q,
        kv,
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
        kv.stride(0),
        GROUP=blocks.heads,
        B=kv.shape[3],
        R=shape.rank,
        P=shape.rope,
        BLOCK_M=tuning.queries,
        BLOCK_Q=blocks.tokens,
        TILE=tuning.tile,
        SPLIT=blocks.splits > 1,
        DECODES=blocks.are_decodes,
        SCALED=is_fp8(kv),
        num_warps=tuning.warps,
        num_stages=tuning.stages,
    )
