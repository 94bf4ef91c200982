"""Attention over windows, with capped scores and with sinks, in the sizes of models that have them.

    python -m benchmarks.engine.windows [--quick] [--prompts] [--only "gpt-oss, window"]

For each kind of layer and batch: the time of what the layer computes, that of the same layer over
its whole context with nothing beside (`plain_us`, on Hopper by WGMMA where head dims allow), and
how far the result is from the reference. With --prompts: that of prompts by Hopper's kernel and by
Triton's in each tile in question, in turns, where the first of `by` is what serves.

On a CPU, or with --quick, batches are small. With TRITON_INTERPRET=1 on a CPU the kernels that
--prompts times run in Triton's interpreter, in float16, and are not timed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import triton
import typer
from torch import Tensor

from benchmarks.engine.kernels import (
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
# Of Triton's kernel: query rows, keys, warps, stages; by the registers that the compiler counts.
IN_QUESTION = [(256, 64, 8, 3), (128, 64, 4, 3), (128, 64, 8, 3), (128, 32, 4, 4), (64, 64, 4, 3)]
TURNS = 5  # of each kernel and tile
SMALL_DECODES, SMALL_PREFILLS = [(4, 96)], [(1, 48, 64), (1, 160, 160)]


Size = tuple[int, int, int]  # rows, new tokens, context


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


EmitBatch = Callable[[str, Layer, Batch], None]


def main(quick: bool = False, prompts: bool = False, only: str = "") -> None:
    """Print one JSON line for each kind of layer whose name begins with `only`, and batch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    small = quick or device == "cpu"
    can_launch = device == "cuda" or bool(triton.knobs.runtime.interpret)
    decodes = [(rows, 1, context) for rows, context in (SMALL_DECODES if small else DECODES)]
    sizes = [*([] if prompts else decodes), *(SMALL_PREFILLS if small else PREFILLS)]
    for name in LAYERS:
        if name.startswith(only):
            _emit_layer(name, sizes, device, _emit_ways if prompts and can_launch else _emit)


def _emit_layer(name: str, sizes: list[Size], device: str, emit_batch: EmitBatch) -> None:
    progress(name)
    layer = LAYERS[name]
    for rows, new, context in sizes:
        batch = make_batch([context] * rows, new, device, layer.heads)
        emit_batch(f"{name}: {rows} x {new} of {context}", layer, batch)


def _variant(layer: Layer) -> AttentionVariant:
    return AttentionVariant(layer.heads.dim**-0.5, layer.window, layer.softcap)


def _sinks(layer: Layer, q: Tensor) -> Tensor | None:
    if not layer.sinks:
        return None
    return torch.randn(layer.heads.query, dtype=q.dtype, device=q.device)


def _emit_ways(name: str, layer: Layer, batch: Batch) -> None:
    """All in turns: so a clock that changes meets each."""
    trials = _trials(layer, batch, list(_ways(*batch[:2], _variant(layer))))
    turns = [[_us(trial) for trial in trials] for _ in range(TURNS)]
    for trial, times in zip(trials, zip(*turns, strict=True), strict=True):
        timed = [us for us in times if us is not None]
        spread = {"least_us": min(timed), "most_us": max(timed)} if timed else {}
        middle = statistics.median(timed) if timed else None
        emit(name, by=trial.by, us=middle, **spread, from_what_serves=trial.apart)


@dataclass(frozen=True, slots=True)
class Trial:
    """Prompts by one kernel and tile."""

    by: str
    call: Callable[[], None]
    apart: float  # from what serves, relative; on a CPU from the reference
    is_timed: bool  # not in the interpreter


def _trials(layer: Layer, batch: Batch, ways: list[PrefillTuning]) -> list[Trial]:
    """Each has run once."""
    q, kv, layout = batch
    if not q.is_cuda:  # the interpreter has no products of bfloat16
        q, kv = q.half(), kv.half()
    variant, sinks = _variant(layer), _sinks(layer, q)
    wanted = attention((q, kv, layout), variant, sinks).float()
    trials = []
    for tuning in ways:
        out = torch.empty_like(q)
        call = partial(prefill_attention.launch_tuned, q, kv, layout, variant, sinks, tuning, out)
        call()
        apart = float((out.float() - wanted).norm() / wanted.norm())
        trials.append(Trial(_by(tuning), call, apart, is_timed=q.is_cuda))
    return trials


def _us(trial: Trial) -> float | None:
    return replayed_seconds(trial.call) * 1e6 if trial.is_timed else None


def _by(tuning: PrefillTuning) -> str:
    how = "hopper" if tuning.is_for_hopper else "triton"
    return f"{how}, {tuning.queries} x {tuning.tile}, {tuning.warps} warps, {tuning.stages}"


def _ways(q: Tensor, kv: Tensor, variant: AttentionVariant) -> Iterator[PrefillTuning]:
    """What serves, and what else could."""
    serves = prefill_attention.tuning_for(q, kv, variant)
    yield serves
    can = capability(q.device) == HOPPER and q.shape[2] <= 128 and variant.softcap is None
    others = [hopper_tuning()] if can else []
    others += [_triton_tile(*one) for one in (IN_QUESTION if q.shape[2] <= 128 else ())]
    yield from (one for one in others if one != serves)


def _triton_tile(queries: int, tile: int, warps: int, stages: int) -> PrefillTuning:
    return PrefillTuning(queries, tile, warps, stages, programs=132, least_keys=256)


def _emit(name: str, layer: Layer, batch: Batch) -> None:
    variant, sinks = _variant(layer), _sinks(layer, batch[0])
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
