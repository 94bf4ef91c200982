"""How fast paged attention is on this GPU: decode in bytes a second, prefill in operations.

Run as `python -m benchmarks.attention`. For decode it counts the bytes of each row's keys and
values once (those of a shared prefix once for all its rows), for prefill the multiplications and
additions below the diagonal. Each launch is replayed from a CUDA graph, so the host's time does not
count. For comparison it prints the machine's copy bandwidth, and torch's attention over the same
keys, contiguous. Knows only kernels; `benchmarks.step` measures whole steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
import typer
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from triton.testing import do_bench, do_bench_cudagraph

from benchmarks.ceilings import seconds_of
from benchmarks.shared_prefix import (
    GROUPS_OF_FOUR,
    Forest,
    forest_lengths,
    make_shared,
    with_units,
)
from kernels.batch_layout import BatchLayout, kv_pool_shape, layer_view
from kernels.ops import torch_ops, triton_ops

BLOCK, Q_HEADS, KV_HEADS, HEAD_DIM, DTYPE = 16, 32, 8, 128, torch.bfloat16
SCALE = 1 / math.sqrt(HEAD_DIM)
KEY_BYTES = 2 * KV_HEADS * HEAD_DIM * DTYPE.itemsize
DECODES = [(1, 8_192), (1, 131_072), (8, 8_192), (64, 1_024), (64, 8_192), (256, 1_024)]
PREFILLS = [
    (1, 1_024, 1_024),
    (8, 1_024, 1_024),
    (1, 2_048, 2_048),
    (1, 8_192, 8_192),
    (1, 32_768, 32_768),
    (1, 2_048, 32_768),
    (1, 64, 2_112),
    (1, 64, 8_256),
    (1, 64, 32_832),
]


def mixed_lengths(rows: int, low: int, high: int) -> list[int]:
    """Lengths evenly spread on a log scale, shuffled."""
    steps = [low * (high / low) ** (i / (rows - 1)) for i in range(rows)]
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).tolist()
    return [round(steps[i]) for i in order]


def make_batch(
    lengths: list[int], new: int, device: str = "cuda"
) -> tuple[Tensor, Tensor, BatchLayout]:
    """Rows of `lengths` whose blocks lie scattered over the pool: (q, kv, layout)."""
    rows, needed = len(lengths), [-(-length // BLOCK) for length in lengths]
    pool = torch.randn(
        kv_pool_shape(sum(needed), 1, KV_HEADS, BLOCK, HEAD_DIM), dtype=DTYPE, device=device
    )
    ids = torch.randperm(sum(needed), device=device).int()
    tables = torch.zeros((rows, max(needed)), dtype=torch.int32, device=device)
    for row, own in enumerate(torch.split(ids, needed)):
        tables[row, : len(own)] = own
    positions = torch.cat([torch.arange(n - new, n, device=device) for n in lengths])
    layout = BatchLayout(
        query_starts=(torch.arange(rows + 1, device=device) * new).int(),
        context_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        block_tables=tables,
        positions=positions,
        slots=positions,
        num_decodes=rows if new == 1 else 0,
        max_query_len=new,
        max_context_len=max(lengths),
    )
    q = torch.randn(rows * new, Q_HEADS, HEAD_DIM, dtype=DTYPE, device=device)
    return q, layer_view(pool, 0), with_units(layout, pool, Q_HEADS)


def seconds(call: Callable[[], object]) -> float:
    """Median time of one call, replayed from a graph."""
    return float(do_bench_cudagraph(call, rep=60, return_mode="median")) / 1e3


def attention_seconds(batch: tuple[Tensor, Tensor, BatchLayout]) -> float:
    """Seconds of one call of the op that the engine uses on the batch's device."""
    q, kv, layout = batch
    if not q.is_cuda:
        reference = torch_ops().paged_attention
        return seconds_of(lambda: reference(q, kv, layout, SCALE), "cpu")
    attention = triton_ops().paged_attention
    return seconds(lambda: attention(q, kv, layout, SCALE))


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a large copy on the device."""
    source = torch.randn(2**30, device="cuda")
    target = torch.empty_like(source)
    # Not from a graph, where the slower copy engine would do it.
    time = float(do_bench(lambda: target.copy_(source), return_mode="median")) / 1e3
    return 2 * source.numel() * source.itemsize / time


def torch_seconds(rows: int, new: int, context: int, backend: SDPBackend) -> float | None:
    """Seconds of torch's attention over contiguous keys; None if it has no such kernel."""
    shape = (rows, context, KV_HEADS, HEAD_DIM)
    k, v = (torch.randn(shape, dtype=DTYPE, device="cuda").transpose(1, 2) for _ in range(2))
    q = torch.randn((rows, new, Q_HEADS, HEAD_DIM), dtype=DTYPE, device="cuda").transpose(1, 2)
    mask = causal_lower_right(new, context) if 1 < new < context else None

    def attend() -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=new == context, scale=SCALE, enable_gqa=True
            )

    try:
        return seconds(attend)
    except RuntimeError:
        return None


def _beside(work: float, rows: int, new: int, context: int) -> str:
    """What torch's kernels reach on `work`, in units of 1e12 a second."""
    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    times = {name: torch_seconds(rows, new, context, kind) for name, kind in backends.items()}
    return "  ".join(
        f"{name} {work / time / 1e12:.2f}" if time else f"{name} -" for name, time in times.items()
    )


def print_decodes(bandwidth: float) -> None:
    """One line a batch of equal or mixed lengths."""
    batches = [(f"{rows:>3} x {context:>7}", [context] * rows) for rows, context in DECODES]
    batches += [
        (f"{rows:>3} x 128..32k", mixed_lengths(rows, 128, 32_768)) for rows in (16, 64, 128)
    ]
    for name, lengths in batches:
        time = attention_seconds(make_batch(lengths, 1))
        size = sum(lengths) * KEY_BYTES
        beside = _beside(size, len(lengths), 1, lengths[0]) if len(set(lengths)) == 1 else ""
        share = size / time / bandwidth
        print(
            f"decode  {name}: {time * 1e6:>8.1f} us {size / time / 1e12:5.2f} TB/s {share:5.0%}"
            f"  {beside}"
        )


def print_prefills() -> None:
    """One line a batch of equal rows."""
    for rows, new, context in PREFILLS:
        time = attention_seconds(make_batch([context] * rows, new))
        work = 4 * rows * new * (context - (new - 1) / 2) * Q_HEADS * HEAD_DIM
        print(
            f"prefill {rows:>3} x {new:>6} of {context:>6}: {time * 1e6:>8.1f} us "
            f"{work / time / 1e12:>4.0f} TFLOP/s  {_beside(work, rows, new, context)}"
        )


def shared_seconds(forest: Forest) -> tuple[float, float, float]:
    """(each row by itself, one level of groups, with a level above of all rows)."""
    q, kv, layout = make_batch(forest_lengths(forest), 1)
    times = []
    for levels in (0, 1, 2):
        tables, shared = make_shared(forest, levels, layout.block_tables, BLOCK)
        grown = with_units(replace(layout, block_tables=tables, shared=shared), kv, Q_HEADS)
        times.append(attention_seconds((q, kv, grown)))
    return times[0], times[1], times[2]


def print_shared() -> None:
    """Print from which size on it pays to read a shared prefix only once."""
    alone, one, two = shared_seconds(GROUPS_OF_FOUR)
    print(
        f"shared  16 groups x 4, 1024 of all + 3072 of the group + 256: alone {alone * 1e6:.1f} us,"
        f" one level {one * 1e6:.1f}, two {two * 1e6:.1f}"
    )
    for rows in (2, 4, 8, 16, 32, 64):
        line = []
        for shared in (512, 1_024, 2_048, 4_096, 8_192):
            alone, one, _ = shared_seconds(Forest(1, rows, 0, shared, 256))
            line.append(f"{shared}: {alone * 1e6:.1f}/{one * 1e6:.1f}")
        print(f"shared  1 group x {rows:>2}, alone/together us  " + "  ".join(line))


def main() -> None:
    """Print one line a batch."""
    if not torch.cuda.is_available():
        raise SystemExit("this measures a GPU's kernels; benchmarks.kernels runs anywhere")
    bandwidth = copy_bandwidth()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}:"
        f" copy {bandwidth / 1e12:.2f} TB/s;"
        f" {Q_HEADS} query heads over {KV_HEADS}, head dim {HEAD_DIM}, {DTYPE}, blocks of {BLOCK}"
    )
    print_decodes(bandwidth)
    print_prefills()
    print_shared()


if __name__ == "__main__":
    typer.run(main)
