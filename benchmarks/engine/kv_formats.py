"""Attention over fp8 KV compared with 16-bit KV: times, and errors against float64.

    python -m benchmarks.engine.kv_formats [--quick]

Decodes and prompts with an 8B's heads read the same numbers in bfloat16, and in fp8 with scales.
`*_error` is the error of the attention output for the first row's last token. The reference is
float64 attention over the numbers stored in the pool, which are rounded in fp8. On a CPU, or with
--quick, the sizes are small.
"""

from __future__ import annotations

import torch
import typer

from benchmarks.engine.kernels import (
    BLOCK,
    HEAD_DIM,
    KV_HEADS,
    Q_HEADS,
    SCALE,
    Batch,
    attention,
    attention_seconds,
    make_batch,
)
from benchmarks.record import emit, progress
from kernels.attention.kv import fp8_kv
from kernels.limits import KV_SCALE_BYTES
from storage.layouts.kv_layout import FP8, KvGroup, KvLayout
from storage.pools.device_pool import empty_blocks, layer_views
from tests.doubles.engine.device.shared_prefix import with_units

AT_ONCE = 4096
DECODES = [(64, 8_192), (256, 1_100), (1, 8_192)]  # numbers of rows and of context tokens
# numbers of rows, of new tokens and of context tokens
PREFILLS = [(1, 8_192, 8_192), (1, 512, 16_000), (40, 64, 8_192)]


def main(quick: bool = False) -> None:
    """Print a JSON line for each batch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    small = quick or device == "cpu"
    progress("decode attention")
    for rows, context in [(2, 96)] if small else DECODES:
        _emit(f"decode {rows} x {context}", make_batch([context] * rows, 1, device))
    progress("prefill attention")
    for rows, new, context in [(1, 48, 64)] if small else PREFILLS:
        _emit(f"prefill {rows} x {new} of {context}", make_batch([context] * rows, new, device))


def in_fp8(batch: Batch) -> Batch:
    """Quantise a batch's KV into an fp8 pool."""
    q, kv, layout = batch
    scale_bytes = 2 * KV_HEADS * BLOCK * KV_SCALE_BYTES
    group = KvGroup((0,), KV_HEADS, HEAD_DIM, FP8, scale_bytes=scale_bytes)
    one_layer = KvLayout((group,), BLOCK)
    [narrow] = layer_views(empty_blocks(one_layer, len(kv), kv.device), one_layer)
    scales = fp8_kv.scales_of(narrow)
    for first in range(0, len(kv), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        values, found = fp8_kv.quantised(kv[part])
        narrow[part].view(torch.uint8).copy_(values.view(torch.uint8))
        scales[part] = found
    return q, narrow, with_units(layout, narrow, Q_HEADS)


def error(batch: Batch) -> float:
    """Compute the relative error of the output for the first row's last token."""
    q, kv, layout = batch
    context, last = int(layout.context_lens[0]), int(layout.query_starts[1]) - 1
    blocks = layout.block_tables[0, : -(-context // BLOCK)].long()
    wide = fp8_kv.dequantised(kv, blocks) if fp8_kv.is_fp8(kv) else kv[blocks]
    both = wide.double().permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context]
    keys, values = both.repeat_interleave(Q_HEADS // KV_HEADS, dim=1)
    scores = torch.einsum("hd,htd->ht", q[last].double(), keys) * SCALE
    truth = torch.einsum("ht,htd->hd", scores.softmax(1), values)
    return float((attention(batch)[last].double() - truth).norm() / truth.norm())


def _emit(name: str, wide: Batch) -> None:
    narrow = in_fp8(wide)
    wide_s, narrow_s = attention_seconds(wide), attention_seconds(narrow)
    emit(
        name,
        bf16_us=wide_s * 1e6,
        fp8_us=narrow_s * 1e6,
        times_faster=wide_s / narrow_s,
        bf16_error=error(wide),
        fp8_error=error(narrow),
    )


if __name__ == "__main__":
    typer.run(main)
