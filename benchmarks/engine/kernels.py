"""Attention and sampling kernels compared with the machine's limits and with torch's kernels.

    python -m benchmarks.engine.kernels [--quick]

On a GPU this measures the engine's kernels: decode as a share of the measured copy bandwidth, and
prefill in TFLOP/s. Both numbers are compared with torch's flash and cuDNN attention over contiguous
keys. Other lines have prefill of wide heads, decode and prefill over latents, decode with shared
prefixes (read once per group, or per row), and top-k and top-p. Decode counts the bytes of each
row's keys and values once. Prefill counts the multiplications and additions below the diagonal.
Launches are replayed from a CUDA graph, so the host's time does not count. On a CPU, or with
--quick, the shapes are few and small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
import typer
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from triton.testing import do_bench_cudagraph

from benchmarks.engine.ceilings import Ceilings, measured_ceilings, seconds_of
from benchmarks.record import emit, progress
from kernels.attention.batch_layout import BatchLayout
from kernels.attention.variant import AttentionVariant
from kernels.latents import attend_latents
from kernels.latents.latent_shape import LatentShape
from kernels.ops import TopKTopP, ops_for
from kernels.sampling import top_k_top_p
from kernels.sampling.top_k_top_p import RULED_OUT
from tests.doubles.engine.device.shared_prefix import Forest, make_shared, with_units

BLOCK, Q_HEADS, KV_HEADS, HEAD_DIM, DTYPE = 16, 32, 8, 128, torch.bfloat16
SCALE = 1 / math.sqrt(HEAD_DIM)
KEY_BYTES = 2 * KV_HEADS * HEAD_DIM * DTYPE.itemsize
DECODES = [(1, 8_192), (1, 131_072), (8, 8_192), (64, 1_024), (64, 8_192), (256, 1_024)]
PREFILLS = [  # numbers of rows, of new tokens and of context tokens
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
WIDE_PREFILLS = [(1_024, 1_024), (8_192, 8_192), (8_192, 32_768), (512, 16_384)]
# rows, new tokens of each row, context
LATENT_BATCHES = [
    (1, 1, 1_100),
    (32, 1, 1_100),
    (128, 1, 1_100),
    (256, 1, 1_100),
    (64, 1, 8_200),
    (1, 64, 32_832),
    (1, 1_024, 2_048),
    (1, 1_024, 32_768),
]
SMALL_DECODES, SMALL_PREFILLS = [(1, 64), (4, 96)], [(1, 48, 64)]
GROUPS_OF_FOUR = Forest(groups=16, rows_each=4, of_all=1_024, of_group=3_072, own=256)
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
PLAIN = AttentionVariant(SCALE)
Batch = tuple[Tensor, Tensor, BatchLayout]  # queries, the pool's keys and values, the layout


def main(quick: bool = False) -> None:
    """Print a JSON line for each batch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    small = quick or device == "cpu"
    ceilings = measured_ceilings(device, small=small)
    emit("ceilings", tb_per_s=ceilings.bytes_per_s / 1e12, tflops=ceilings.flops / 1e12)
    progress("decode attention")
    for rows, context in SMALL_DECODES if small else DECODES:
        _emit_decode(f"decode {rows} x {context}", [context] * rows, ceilings, device)
    for rows in () if small else (16, 64, 128):
        lengths = mixed_lengths(rows, 128, 32_768)
        _emit_decode(f"decode {rows} x 128..32k", lengths, ceilings, device)
    progress("prefill attention")
    for rows, new, context in SMALL_PREFILLS if small else PREFILLS:
        _emit_prefill(rows, new, context, ceilings, device)
    if not small:
        progress("wide heads")
        for heads in (QWEN35_27B, GLM_EXPANDED, GEMMA4):
            for new, context in WIDE_PREFILLS:
                _emit_prefill(1, new, context, ceilings, device, heads)
        progress("latents")
        for rows, new, context in LATENT_BATCHES:
            _emit_latents(rows, new, context, ceilings)
        progress("shared prefixes")
        _emit_shared()
    progress("filters")
    _emit_filters(device, small=small)


def mixed_lengths(rows: int, low: int, high: int) -> list[int]:
    """Draw lengths evenly on a log scale, and shuffle them."""
    steps = [low * (high / low) ** (i / (rows - 1)) for i in range(rows)]
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).tolist()
    return [round(steps[i]) for i in order]


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a layer: number of query heads and of KV heads, and head size."""

    query: int
    kv: int
    dim: int


LLAMA = Heads(Q_HEADS, KV_HEADS, HEAD_DIM)
QWEN35_27B = Heads(24, 4, 256)
GLM_EXPANDED = Heads(20, 20, 256)  # GLM-4.7-Flash: keys and values of each head, from latents
GEMMA4 = Heads(16, 2, 512)  # the layers of Gemma 4 26B-A4B that see the whole context
GLM_LATENTS = LatentShape(nope=192, rope=64, values=256, rank=512, scale=1 / 16)


def make_batch(lengths: list[int], new: int, device: str = "cuda", heads: Heads = LLAMA) -> Batch:
    """Create a batch with a row for each of `lengths`, whose blocks are scattered over the pool."""
    rows, needed = len(lengths), [-(-length // BLOCK) for length in lengths]
    kv = torch.randn((sum(needed), 2, heads.kv, BLOCK, heads.dim), dtype=DTYPE, device=device)
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
        max_context_len=max(lengths),
    )
    q = torch.randn(rows * new, heads.query, heads.dim, dtype=DTYPE, device=device)
    return q, kv, with_units(layout, kv, heads.query)


def replayed_seconds(call: Callable[[], object], rep_ms: int = 60) -> float:
    """Measure the median seconds of a call over replays of a graph, each about `rep_ms` long.

    The device is synchronised first, because the graph's own stream does not wait for the call's
    inputs.
    """
    torch.cuda.synchronize()
    return float(do_bench_cudagraph(call, rep=rep_ms, return_mode="median")) / 1e3


def attention(
    batch: Batch, variant: AttentionVariant = PLAIN, sinks: Tensor | None = None
) -> Tensor:
    """Run attention with the op that the engine uses on the batch's device."""
    return ops_for(batch[0].device).paged_attention(*batch, variant, sinks)


def attention_seconds(
    batch: Batch, variant: AttentionVariant = PLAIN, sinks: Tensor | None = None
) -> float:
    """Measure the seconds of one attention call."""
    if batch[0].is_cuda:
        return replayed_seconds(lambda: attention(batch, variant, sinks))
    return seconds_of(lambda: attention(batch, variant, sinks), "cpu")


def torch_seconds(rows: int, new: int, context: int, backend: SDPBackend) -> float | None:
    """Time torch's attention over contiguous keys, in seconds.

    Returns None if torch has no such kernel.
    """
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
        return replayed_seconds(attend)
    except RuntimeError:
        return None


def _emit_decode(name: str, lengths: list[int], ceilings: Ceilings, device: str) -> None:
    took, size = attention_seconds(make_batch(lengths, 1, device)), sum(lengths) * KEY_BYTES
    beside = _beside(len(lengths), 1, lengths[0], device) if len(set(lengths)) == 1 else {}
    emit(
        name,
        us=took * 1e6,
        tb_per_s=size / took / 1e12,
        share=size / took / ceilings.bytes_per_s,
        **beside,
    )


def _emit_prefill(
    rows: int, new: int, context: int, ceilings: Ceilings, device: str, heads: Heads = LLAMA
) -> None:
    variant = AttentionVariant(1 / math.sqrt(heads.dim))
    took = attention_seconds(make_batch([context] * rows, new, device, heads), variant)
    work = 4 * rows * new * (context - (new - 1) / 2) * heads.query * heads.dim
    is_usual = heads == LLAMA
    emit(
        f"prefill {rows} x {new} of {context}" + ("" if is_usual else f", heads of {heads.dim}"),
        us=took * 1e6,
        tflops=work / took / 1e12,
        share=work / took / ceilings.flops,
        **(_beside(rows, new, context, device) if is_usual else {"query_heads": heads.query}),
    )


def _emit_latents(rows: int, new: int, context: int, ceilings: Ceilings) -> None:
    shape, heads = GLM_LATENTS, GLM_EXPANDED.query
    _, pool, layout = make_batch([context] * rows, new, heads=Heads(1, 1, shape.latent))
    q = torch.randn(rows * new, heads, shape.latent, dtype=DTYPE, device="cuda")
    latents = pool[:, :1].contiguous()
    took = replayed_seconds(lambda: attend_latents.launch(q, latents, layout, shape, 0, rows))
    if new > 1:
        pairs = rows * (new * context - new * (new - 1) // 2)
        work = 2 * pairs * heads * (shape.latent + shape.rank)
        name = f"prefill {rows} x {new} of {context}, latents"
        emit(name, us=took * 1e6, tflops=work / took / 1e12, share=work / took / ceilings.flops)
        return
    size = rows * context * shape.latent * DTYPE.itemsize
    emit(
        f"decode {rows} x {context}, latents",
        us=took * 1e6,
        tb_per_s=size / took / 1e12,
        share=size / took / ceilings.bytes_per_s,
    )


def _beside(rows: int, new: int, context: int, device: str) -> dict[str, float | None]:
    if device == "cpu":
        return {}
    times = {name: torch_seconds(rows, new, context, kind) for name, kind in BACKENDS.items()}
    return {f"{name}_us": None if time is None else time * 1e6 for name, time in times.items()}


def _emit_shared() -> None:
    forests = {"16 groups of 4, 1024 of all, 3072 of the group": GROUPS_OF_FOUR}
    forests |= {
        f"{rows} rows on {shared}": Forest(1, rows, 0, shared, 256)
        for rows in (2, 4, 16, 64)
        for shared in (1_024, 4_096, 8_192)
    }
    for name, forest in forests.items():
        q, kv, layout = make_batch(forest.lengths(), 1)
        tables, shared = make_shared(forest, layout.block_tables, BLOCK)
        alone, together = (
            attention_seconds((q, kv, with_units(each, kv, Q_HEADS)))
            for each in (
                replace(layout, block_tables=tables, shared=None),
                replace(layout, block_tables=tables, shared=shared),
            )
        )
        emit(f"shared {name}", alone_us=alone * 1e6, together_us=together * 1e6)


def _emit_filters(device: str, *, small: bool) -> None:
    vocabulary = 500 if small else 128_256
    serving = ops_for(torch.device(device)).top_k_top_p
    for rows in (1, 4) if small else (1, 32, 256):
        for name, top_k in (("top-p 0.9", vocabulary), ("top-k 50, top-p 0.9", 50)):
            took, by_sorting = (
                _filter_seconds(way, rows, vocabulary, top_k, device)
                for way in (serving, top_k_top_p.reference)
            )
            emit(f"{rows} x {name}", us=took * 1e6, sorted_us=by_sorting * 1e6)


def _filter_seconds(way: TopKTopP, rows: int, vocabulary: int, top_k: int, device: str) -> float:
    logits = (torch.randn((rows, vocabulary), device=device) * 3).bfloat16()
    ones, all_rows = torch.ones(rows, device=device), torch.arange(rows, device=device)
    top_ks = torch.full((rows,), top_k, device=device)

    def call() -> None:
        way(logits.clone(), all_rows, ones, top_ks, ones * 0.9, ones * RULED_OUT)

    return seconds_of(call, device)


if __name__ == "__main__":
    typer.run(main)
