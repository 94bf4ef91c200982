"""How fast paged attention is on this GPU: decode in bytes a second, prefill in operations.

Run as `python -m benchmarks.attention`. Counts each row's keys and values once for decode,
and the multiplications and additions below the diagonal for prefill. Knows the kernels alone;
what a whole step costs is the engine's to measure.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from triton.testing import do_bench

from kernels.batch_layout import BatchLayout, kv_pool_shape, layer_view
from kernels.ops import triton_ops

BLOCK, Q_HEADS, KV_HEADS, HEAD_DIM, DTYPE = 16, 32, 8, 128, torch.bfloat16
DECODES = [(1, 8_192), (1, 131_072), (8, 8_192), (64, 1_024), (64, 8_192), (256, 1_024)]
PREFILLS = [(1, 1_024, 1_024), (1, 8_192, 8_192), (1, 2_048, 32_768), (8, 1_024, 1_024)]


def make_batch(rows: int, new: int, context: int) -> tuple[Tensor, Tensor, BatchLayout]:
    """Equal rows whose blocks lie scattered over the pool: (q, kv, layout)."""
    blocks = -(-context // BLOCK)
    pool = torch.randn(
        kv_pool_shape(rows * blocks, 1, KV_HEADS, BLOCK, HEAD_DIM), dtype=DTYPE, device="cuda"
    )
    tables = torch.randperm(rows * blocks, device="cuda").int().view(rows, blocks)
    positions = torch.arange(context - new, context, device="cuda").repeat(rows)
    layout = BatchLayout(
        query_starts=(torch.arange(rows + 1, device="cuda") * new).int(),
        context_lens=torch.full((rows,), context, dtype=torch.int32, device="cuda"),
        block_tables=tables,
        positions=positions,
        slots=positions,
        num_decodes=rows if new == 1 else 0,
        max_query_len=new,
        max_context_len=context,
    )
    q = torch.randn(rows * new, Q_HEADS, HEAD_DIM, dtype=DTYPE, device="cuda")
    return q, layer_view(pool, 0), layout


def seconds(rows: int, new: int, context: int) -> float:
    """Median time of one call."""
    q, kv, layout = make_batch(rows, new, context)
    attention, scale = triton_ops().paged_attention, 1 / math.sqrt(HEAD_DIM)
    median = do_bench(lambda: attention(q, kv, layout, scale), return_mode="median")
    return float(median) / 1e3


def main() -> None:
    """Print one line a batch."""
    print(f"{Q_HEADS} query heads over {KV_HEADS}, head dim {HEAD_DIM}, {DTYPE}, blocks of {BLOCK}")
    for rows, context in DECODES:
        time = seconds(rows, 1, context)
        rate = rows * context * 2 * KV_HEADS * HEAD_DIM * DTYPE.itemsize / time / 1e9
        print(f"decode  {rows:>3} x {context:>7}: {time * 1e6:>9.1f} us {rate:>6.0f} GB/s")
    for rows, new, context in PREFILLS:
        time = seconds(rows, new, context)
        pairs = rows * new * (context - (new - 1) / 2)
        rate = 4 * pairs * Q_HEADS * HEAD_DIM / time / 1e12
        shape = f"{rows:>3} x {new:>6} of {context:>6}"
        print(f"prefill {shape}: {time * 1e6:>9.1f} us {rate:>6.0f} TFLOP/s")


if __name__ == "__main__":
    main()
