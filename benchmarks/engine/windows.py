"""Attention over windows, with capped scores and with sinks, in the sizes of models that have them.

    python -m benchmarks.engine.windows [--quick]

For each kind of layer and batch: the time of what the layer computes, that of the same layer over
its whole context with nothing beside (`plain_us`, on Hopper by WGMMA where head dims allow), and
how far the result is from the reference. On a CPU, or with --quick, batches are small.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import typer
from torch import Tensor

from benchmarks.engine.kernels import DTYPE, Batch, Heads, attention_seconds, make_batch
from benchmarks.record import emit, progress
from kernels.attention.variant import AttentionVariant
from kernels.ops import ops_for, torch_ops

DECODES = [(1, 8_192), (64, 8_192), (256, 1_024)]  # rows, context
PREFILLS = [(1, 2_048, 2_048), (1, 8_192, 8_192), (1, 512, 8_192)]  # rows, new tokens, context
MOST_SCORES = 2**23  # of a head
SMALL_DECODES, SMALL_PREFILLS = [(4, 96)], [(1, 48, 64)]


@dataclass(frozen=True, slots=True)
class Layer:
    """A kind of layer."""

    heads: Heads
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False


GPT_OSS, GEMMA_3, GEMMA_2 = Heads(64, 8, 64), Heads(8, 4, 256), Heads(16, 8, 256)
LAYERS = {
    "gpt-oss, window": Layer(GPT_OSS, 128, sinks=True),
    "gpt-oss, full": Layer(GPT_OSS, sinks=True),
    "gemma-3-4b, window": Layer(GEMMA_3, 1_024),
    "gemma-3-4b, full": Layer(GEMMA_3),
    "gemma-2-9b, window": Layer(GEMMA_2, 4_096, 50.0),
    "gemma-2-9b, full": Layer(GEMMA_2, None, 50.0),
}


def main(quick: bool = False) -> None:
    """Print one JSON line for each kind of layer and batch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    small = quick or device == "cpu"
    decodes = [(rows, 1, context) for rows, context in (SMALL_DECODES if small else DECODES)]
    for name, layer in LAYERS.items():
        progress(name)
        for rows, new, context in (*decodes, *(SMALL_PREFILLS if small else PREFILLS)):
            batch = make_batch([context] * rows, new, device, layer.heads)
            _emit(f"{name}: {rows} x {new} of {context}", layer, batch)


def _emit(name: str, layer: Layer, batch: Batch) -> None:
    q = batch[0]
    plain = AttentionVariant(layer.heads.dim**-0.5)
    variant = AttentionVariant(plain.scale, layer.window, layer.softcap)
    sinks = torch.randn(layer.heads.query, dtype=DTYPE, device=q.device) if layer.sinks else None
    emit(
        name,
        us=attention_seconds(batch, variant, sinks) * 1e6,
        plain_us=attention_seconds(batch, plain) * 1e6,
        error=_error(batch, variant, sinks),
    )


def _error(batch: Batch, variant: AttentionVariant, sinks: Tensor | None) -> float | None:
    """Of the whole result, relative to the reference; None where that has too many scores."""
    q, _, layout = batch
    if q.shape[0] * layout.max_context_len > MOST_SCORES:
        return None
    got = ops_for(q.device).paged_attention(*batch, variant, sinks).float()
    wanted = torch_ops().paged_attention(*batch, variant, sinks).float()
    return float((got - wanted).norm() / wanted.norm())


if __name__ == "__main__":
    typer.run(main)
