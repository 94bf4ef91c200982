"""The conversion from fp8 to 16 bits of the KV that a step's prompts read, for Hopper's kernel.

Hopper's kernel copies boxes of 16-bit numbers to shared memory. The conversion is worth its time:
for 8,192 tokens and one layer it takes about 15 us, and attention 600 us. The result is a small
pool, in which block i of row r has the id (r - first) * blocks per row + i.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.batch_layout import BatchLayout
from kernels.attention.kv.fp8_kv import scales_of_head
from kernels.launch.rounding import next_power_of_2

MAX_WIDENED = 32_768  # maximum number of converted tokens: 128 MiB for 8 KV heads of 128


def widened_tokens(layout: BatchLayout) -> int:
    """Return the number of tokens for which the result has room."""
    return (layout.num_rows - layout.num_decodes) * layout.max_context_len


@triton.jit(do_not_specialize=["table_stride", "num_decodes"])
def _widen_kv_kernel(
    kv: tl.tensor,
    out: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    table_stride: tl.tensor,
    num_decodes: tl.tensor,
    block_stride: tl.tensor,
    KV_HEADS: tl.constexpr,
    B: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
) -> None:
    index, kv_head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if index * B < tl.load(context_lens + num_decodes + row):
        table = block_tables + (num_decodes + row).to(tl.int64) * table_stride
        block = tl.load(table + index).to(tl.int64)
        slot, column = tl.arange(0, B), tl.arange(0, D_PADDED)
        place = slot[:, None] * D + column[None, :]
        inside = column[None, :] < D
        target = (row * tl.num_programs(0) + index).to(tl.int64) * (2 * KV_HEADS * B * D)
        scales = scales_of_head(kv, kv_head, KV_HEADS, B, D) + block * (block_stride // 2) + slot
        for which in tl.static_range(2):
            offset = (which * KV_HEADS + kv_head) * B * D
            numbers = tl.load(kv + block * block_stride + offset + place, mask=inside, other=0.0)
            scale = tl.load(scales + which * KV_HEADS * B).to(tl.float32)
            wide = numbers.to(tl.float32) * scale[:, None]
            tl.store(out + target + offset + place, wide.to(out.dtype.element_ty), mask=inside)


def widen(kv: Tensor, layout: BatchLayout, dtype: torch.dtype) -> tuple[Tensor, BatchLayout]:
    """Convert the KV that rows after the decodes read. Return (n, 2, Hkv, B, D) and its layout.

    `kv` (N, 2, Hkv, B, D) is fp8, the result is of `dtype`. The returned layout has only the rows
    after the decodes.
    """
    _, _, heads, size, dim = kv.shape
    rows, blocks = layout.num_rows - layout.num_decodes, -(-layout.max_context_len // size)
    out = torch.empty((rows * blocks, 2, heads, size, dim), dtype=dtype, device=kv.device)
    _widen_kv_kernel[(blocks, heads, rows)](
        kv,
        out,
        layout.context_lens,
        layout.block_tables,
        layout.block_tables.stride(0),
        layout.num_decodes,
        kv.stride(0),
        KV_HEADS=heads,
        B=size,
        D=dim,
        D_PADDED=next_power_of_2(dim),
    )
    # Blocks of decodes get negative ids, which are never read.
    first = -layout.num_decodes * blocks
    ids = torch.arange(first, rows * blocks, dtype=torch.int32, device=kv.device)
    return out, replace(layout, block_tables=ids.view(layout.num_rows, blocks))
