"""The usual figures of inference, without HTTP: prefill, decode, utilisation.

    python -m benchmarks.engine.by_numbers --model llama-2-7b [--quick]

Weights are random. Prints a JSON line for each measurement: bursts of prompts, timed until each
prompt has its first token; steps that compute a prompt; and steps that decode. Operations a second
are given as shares of two rates. The first is the rate of a large matrix product on this device.
The second is the rate in an H100's or H200's data sheet. `docs/inference-by-numbers.md` has the
figures in a table.
"""

from __future__ import annotations

import statistics

import numpy as np
import torch
import typer

from benchmarks.engine.ceilings import Ceilings, measured_ceilings
from benchmarks.engine.in_process import LocalEngine, Size
from benchmarks.engine.step import BenchShape, timed
from benchmarks.record import emit, progress
from engine.models.layers.layer import attentions
from engine.startup.loading import OpenedModel

SHEET_FLOPS = 989.5e12  # FLOP/s in bf16 without sparsity, by the data sheet of an H100 or H200 SXM
ROUNDS = 3
CONTEXT = 1_100
BURSTS = (Size(80, 1_024, 1), Size(768, 8, 1))
LENGTHS, ROWS = (8, 64, 256, 512, 1_024, 2_048), (1, 8, 32, 64, 128)
QUICK_BURSTS = (Size(4, 32, 1), Size(8, 8, 1))
QUICK_LENGTHS, QUICK_ROWS = (8, 32), (1, 4)


def main(model: str = "llama-2-7b", quick: bool = False) -> None:
    """Print a JSON line for each measurement."""
    on_gpu = torch.cuda.is_available()
    ceilings = measured_ceilings("cuda" if on_gpu else "cpu", small=quick or not on_gpu)
    engine, rng = LocalEngine.open(model, 768, quick=quick), np.random.default_rng(7)
    for size in QUICK_BURSTS if quick else BURSTS:
        _burst(engine, rng, size)
    for new in QUICK_LENGTHS if quick else LENGTHS:
        shape = BenchShape(f"prefill of {new:,}", (), ((new, new),))
        _step(shape, engine.opened, ceilings)
    context = 64 if quick else CONTEXT
    room = engine.opened.num_blocks * engine.opened.welcome.block_size
    for rows in QUICK_ROWS if quick else ROWS:
        if rows * (context + 16) > room:
            progress(f"decode of {rows} x {context:,} is left out: KV for {room:,} tokens alone")
            continue
        shape = BenchShape(f"decode of {rows} x {context:,}", (context,) * rows)
        _step(shape, engine.opened, ceilings)


def flops_of(shape: BenchShape, opened: OpenedModel) -> float:
    """Count a step's multiplications and additions in GEMMs, head and attention."""
    model = opened.model
    layers = sum(layer.num_weights for layer in model.layers)
    head = model.vocab_size * model.hidden_size
    rows = len(shape.contexts) + len(shape.chunks)
    tokens = len(shape.contexts) + sum(new for new, _ in shape.chunks)
    seen = sum(shape.contexts) + sum(new * (context - new / 2) for new, context in shape.chunks)
    attended = sum(one.attention_flops for one in attentions(model.layers)) * seen
    return 2 * (layers * tokens + head * rows) + attended


def _burst(engine: LocalEngine, rng: np.random.Generator, size: Size) -> None:
    progress(f"burst of {size.requests} x {size.prompt}")
    seconds = []
    for _ in range(ROUNDS + 1):
        engine.ask(rng, size)
        seconds.append(engine.run())
    emit(f"burst of {size.requests} x {size.prompt:,}", ms=1e3 * statistics.median(seconds[1:]))


def _step(shape: BenchShape, opened: OpenedModel, ceilings: Ceilings) -> None:
    progress(shape.name)
    ms, flops = timed(shape, opened).ms, flops_of(shape, opened)
    rate = flops / (ms / 1e3)
    emit(shape.name, ms=ms, of_product=rate / ceilings.flops, of_sheet=rate / SHEET_FLOPS)


if __name__ == "__main__":
    typer.run(main)
