"""The kernel that attends to the latents themselves: a value is the first R numbers of a key.

One program computes a query block: BLOCK_Q new tokens of a row, with GROUP of their heads. All
heads read the same latents, tile by tile. A tile is loaded only once for scores and sums. The
softmax is computed as in `attention_tile`. If there are too few query blocks to use the full
device, the latents of each block are divided among several programs, and `merge_attention` merges
their partial outputs. Decodes are query blocks of one token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention import merge_attention
from kernels.attention.attention_tile import LOG2_E, average
from kernels.attention.batch_layout import BatchLayout
from kernels.attention.kv.fp8_kv import is_fp8
from kernels.latents.latent_shape import LatentShape
from kernels.launch.capability import HOPPER, capability
from kernels.launch.rounding import cdiv, next_power_of_2
from kernels.launch.row_blocks import count_row_blocks, first_row_block, row_of_block

_MULTIPROCESSORS = 132  # of an H200
_LEAST_KEYS = 128  # minimum number of keys in a split
_MAX_SPLITS = 64
_MIN_QUERIES = 16  # minimum number of rows of an operand of the matrix units
_MAX_HEADS = 32


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
    # These sizes were measured on an H200 with 20 heads (docs/lab/performance-log.md).
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
    SCALED: tl.constexpr,
) -> None:
    # The last blocks of a row have the most keys, so they start first.
    query_block = tl.num_programs(0) - 1 - tl.program_id(0)
    row = row_of_block(query_starts, query_block, first_row, end_row, BLOCK_Q)
    row_start = tl.load(query_starts + row)
    new_tokens = tl.load(query_starts + row + 1) - row_start
    first_token = (query_block - first_row_block(query_starts, row, first_row, BLOCK_Q)) * BLOCK_Q
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


def heads_together(heads: int) -> int:
    """Return the number of heads of one program: the largest possible that divides `heads`."""
    return max(count for count in range(1, _MAX_HEADS + 1) if heads % count == 0)


def launch(
    q: Tensor, kv: Tensor, layout: BatchLayout, shape: LatentShape, first: int, end: int
) -> Tensor:
    """Compute attention of the rows `first` up to `end` of a step -> (t, H, R).

    Rows before `first` have one token each. q (t, H, R + P) has only the tokens of the rows `first`
    up to `end`. kv (N, 1, 1, B, R + P) is one layer of the pool, of q's dtype or fp8.
    """
    tokens, heads, _ = q.shape
    group, decodes = heads_together(heads), end == layout.num_decodes
    tuning = _tuning(q, group, decodes=decodes)
    block_q = 1 if decodes else tuning.queries // group
    blocks = count_row_blocks(tokens, end - first, block_q)
    out = q.new_empty((tokens, heads, shape.rank))
    most_splits = max(min(layout.max_context_len // _LEAST_KEYS, _MAX_SPLITS), 1)
    programs = blocks * (heads // group)
    splits = (decode_splits if decodes else prompt_splits)(programs, most_splits)
    partial, lse = out, out
    if splits > 1:
        partial = q.new_empty((splits, tokens, heads, shape.rank), dtype=torch.float32)
        lse = q.new_empty((splits, tokens, heads), dtype=torch.float32)
    _attend_latents_kernel[(blocks, heads // group, splits)](
        q,
        kv,
        layout.query_starts,
        layout.context_lens,
        layout.block_tables,
        partial,
        lse,
        shape.scale * LOG2_E,
        first,
        end,
        tokens,
        layout.block_tables.stride(0),
        kv.stride(0),
        GROUP=group,
        B=kv.shape[3],
        R=shape.rank,
        P=shape.rope,
        BLOCK_M=tuning.queries,
        BLOCK_Q=block_q,
        TILE=tuning.tile,
        SPLIT=splits > 1,
        SCALED=is_fp8(kv),
        num_warps=tuning.warps,
        num_stages=tuning.stages,
    )
    if splits > 1:
        merge_attention.merge_splits(partial, lse, out)
    return out


def decode_splits(programs: int, most: int) -> int:
    """Choose the number of programs, from 1 to `most`, that divide the latents of a decode.

    A multiprocessor has space for four programs at the same time.
    """
    return max(min(4 * _MULTIPROCESSORS // programs, most), 1)


@lru_cache(maxsize=256)  # every layer of a step asks for the same
def prompt_splits(programs: int, most: int) -> int:
    """Choose the number of programs, 1 to `most`, that divide the latents of a query block.

    A multiprocessor has space for only one program at a time, so programs run in waves. The last
    wave should be nearly full. Each additional program adds a little work, because its results must
    be merged (`merge_attention`).
    """

    def cost(splits: int) -> float:
        waves = cdiv(programs * splits, _MULTIPROCESSORS)
        return waves / splits * (1 + 0.01 * splits)

    return min(range(1, most + 1), key=cost)
