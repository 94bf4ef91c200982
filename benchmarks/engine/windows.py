"""Attention over windows, with capped scores and with sinks, in the sizes of models that have them.

    python -m benchmarks.engine.windows [--quick] [--prompts] [--only gpt-oss]

For each kind of layer and batch: the time of what the layer computes, that of the same layer over
its whole context with nothing beside (`plain_us`, on Hopper by WGMMA where head dims allow), and
how far the result is from the reference. With --prompts: that of prompts by Hopper's kernel and by
Triton's in each tile in question, where the first of `by` is what serves. On a CPU, or with
--quick, batches are small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import typer
from torch import Tensor

from benchmarks.engine.kernels import (
    DTYPE,
    Batch,
    Heads,
    attention,
    attention_seconds,
    make_batch,
    replayed_seconds,
)
from benchmarks.record import emit, progress
from kernels.attention import prefill_attention
from kernels.attention.tuning import PrefillTuning, hopper_tuning
from kernels.attention.variant import AttentionVariant
from kernels.launch.capability import HOPPER, capability
from kernels.ops import torch_ops

DECODES = [(1, 8_192), (64, 8_192), (256, 1_024)]  # rows, context
PREFILLS = [(1, 2_048, 2_048), (1, 8_192, 8_192), (1, 512, 8_192)]  # rows, new tokens, context
MOST_SCORES = 2**23  # of a head
# Of Triton's kernel: query rows, keys, warps, stages. Registers were counted, times were not taken.
IN_QUESTION = [(256, 64, 8, 3), (128, 64, 4, 3), (128, 64, 8, 3), (128, 32, 4, 4), (64, 64, 4, 3)]
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


def main(quick: bool = False, prompts: bool = False, only: str = "") -> None:
    """Print one JSON line for each kind of layer whose name begins with `only`, and batch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    small = quick or device == "cpu"
    decodes = [(rows, 1, context) for rows, context in (SMALL_DECODES if small else DECODES)]
    batches = [*([] if prompts else decodes), *(SMALL_PREFILLS if small else PREFILLS)]
    for name, layer in LAYERS.items():
        if not name.startswith(only):
            continue
        progress(name)
        for rows, new, context in batches:
            batch = make_batch([context] * rows, new, device, layer.heads)
            how = _emit_ways if prompts and device == "cuda" else _emit
            how(f"{name}: {rows} x {new} of {context}", layer, batch)


def _computed(layer: Layer, device: torch.device) -> tuple[AttentionVariant, Tensor | None]:
    variant = AttentionVariant(layer.heads.dim**-0.5, layer.window, layer.softcap)
    sinks = torch.randn(layer.heads.query, dtype=DTYPE, device=device) if layer.sinks else None
    return variant, sinks


def _emit_ways(name: str, layer: Layer, batch: Batch) -> None:
    q, kv, layout = batch
    variant, sinks = _computed(layer, q.device)
    wanted = attention(batch, variant, sinks).float()
    for tuning in _ways(batch, variant):
        out = torch.empty_like(q)

        def call(tuning: PrefillTuning = tuning, out: Tensor = out) -> None:
            prefill_attention.launch_tuned(q, kv, layout, variant, sinks, tuning, out)

        how = "hopper" if tuning.is_for_hopper else "triton"
        by = f"{how}, {tuning.queries} x {tuning.tile}, {tuning.warps} warps, {tuning.stages}"
        took = replayed_seconds(call)
        apart = float((out.float() - wanted).norm() / wanted.norm())
        emit(name, by=by, us=took * 1e6, from_what_serves=apart)


def _ways(batch: Batch, variant: AttentionVariant) -> Iterator[PrefillTuning]:
    """What serves, and what else could."""
    q, kv, _ = batch
    serves = prefill_attention.tuning_for(q, kv, variant)
    yield serves
    can = capability(q.device) == HOPPER and q.shape[2] <= 128 and variant.softcap is None
    others = [hopper_tuning()] if can else []
    for queries, tile, warps, stages in IN_QUESTION if q.shape[2] <= 128 else ():
        others.append(PrefillTuning(queries, tile, warps, stages, programs=132, least_keys=256))
    yield from (one for one in others if one != serves)


def _emit(name: str, layer: Layer, batch: Batch) -> None:
    variant, sinks = _computed(layer, batch[0].device)
    plain = AttentionVariant(variant.scale)
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
    got = attention(batch, variant, sinks).float()
    wanted = torch_ops().paged_attention(*batch, variant, sinks).float()
    return float((got - wanted).norm() / wanted.norm())


if __name__ == "__main__":
    typer.run(main)
