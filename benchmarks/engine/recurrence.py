"""Kernels of layers with a recurrent state compared with the machine's limits.

    python -m benchmarks.engine.recurrence [--quick] [--model NAME] [--sweep]

The layers are random, in bfloat16 with float32 states: the Gated DeltaNet of Qwen3.5-27B (48 value
heads, 16 key heads, 128 x 128) and the Mamba-2 of Nemotron-3-Nano-30B-A3B (64 heads of 64 x 128, 8
groups). The first lines have the errors of a step and of a prompt against the reference. The other
lines have the times of a layer's convolution, recurrence, gated norm, and all three, replayed from
a CUDA graph. Lines of decodes have the bytes a second of the states read and written, and their
share of the measured copy bandwidth. Lines of prompts have tokens a second. `LAYERS` layers are
measured in turn, so that a state is no longer in the L2 cache when it is measured again.

`--sweep` instead times the scan of prompts with each tuning of the kernel. On a CPU, or with
--quick, sizes are small.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import typer
from torch import Tensor
from triton.runtime.errors import OutOfResources

from benchmarks.engine.ceilings import Ceilings, measured_ceilings, seconds_of
from benchmarks.engine.kernels import replayed_seconds
from benchmarks.record import emit, progress
from kernels.ops import Ops, ops_for, torch_ops
from kernels.recurrence.delta import delta_scan
from kernels.recurrence.delta.delta_inputs import DeltaInputs, delta_shape
from kernels.recurrence.mamba import ssd_scan
from kernels.recurrence.mamba.ssd_inputs import SsdInputs, ssd_shape
from kernels.recurrence.scan_tuning import ScanTuning
from kernels.recurrence.state_rows import StateRows

DTYPE = torch.bfloat16
LAYERS = 8
DECODES = (1, 8, 32, 128)
PROMPTS = ((1, 8192), (8, 1024), (1, 1024), (1, 64))  # numbers of rows, and of tokens of each row
SMALL_DECODES, SMALL_PROMPTS = (1, 4), ((1, 130),)
NO_LIMIT = (0.0, torch.inf)


@dataclass(frozen=True, slots=True)
class RecurrentSizes:
    """The sizes of a layer.

    The state of a head has `lines` x `columns` numbers. `groups` is the number of groups of keys.
    """

    is_delta: bool
    heads: int
    groups: int
    lines: int
    columns: int
    norm_group: int

    @property
    def inner(self) -> int:
        """The number of columns of the layer's output."""
        return self.heads * (self.columns if self.is_delta else self.lines)

    @property
    def channels(self) -> int:
        """The number of channels of the convolution."""
        return self.inner + 2 * self.groups * (self.lines if self.is_delta else self.columns)


MODELS = {
    "qwen3.5-27b": RecurrentSizes(True, 48, 16, 128, 128, 128),
    "nemotron-3-nano": RecurrentSizes(False, 64, 8, 64, 128, 512),
}
SMALL = {
    "qwen3.5-27b": RecurrentSizes(True, 4, 2, 32, 32, 32),
    "nemotron-3-nano": RecurrentSizes(False, 4, 2, 32, 32, 64),
}


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """A layer's inputs, weights and recurrent states, and the parts of its computation."""

    sizes: RecurrentSizes
    x: Tensor
    steps: Tensor  # (2, T, heads): Gated DeltaNet's a and b, or Mamba-2's dt twice
    gate: Tensor
    taps: Tensor
    by_head: Tensor  # (3, heads) float32
    norm: Tensor
    kept: Tensor
    state: Tensor
    rows: StateRows

    def conv(self, ops: Ops) -> Tensor:
        """Compute the convolution."""
        return ops.causal_conv(self.x, self.taps, None, self.kept, self.rows)

    def recur(self, ops: Ops, x: Tensor) -> Tensor:
        """Compute the recurrence."""
        rates, bias, skip = self.by_head
        if self.sizes.is_delta:
            a, b = self.steps
            return ops.gated_delta(x, a, b, rates, bias, self.state, self.rows)
        return ops.ssd(x, self.steps[0], rates, bias, skip, NO_LIMIT, self.state, self.rows)

    def normed(self, ops: Ops, x: Tensor) -> Tensor:
        """Compute the gated norm of the output."""
        is_first = not self.sizes.is_delta
        return ops.gated_norm(x, self.gate, self.norm, 1e-6, self.sizes.norm_group, is_first)

    def all(self, ops: Ops) -> Tensor:
        """Compute convolution, recurrence and gated norm."""
        return self.normed(ops, self.recur(ops, self.conv(ops)))

    def scan(self, tuning: ScanTuning, out: Tensor) -> None:
        """Run the scan over prompts with this tuning of the kernel."""
        rates, bias, skip = self.by_head
        if self.sizes.is_delta:
            a, b = self.steps
            inputs = DeltaInputs(self.x, a, b, rates, bias)
            shape = delta_shape(inputs, self.state)
            delta_scan.launch_tuned(inputs, shape, self.state, self.rows, tuning, out)
        else:
            given = SsdInputs(self.x, self.steps[0], rates, bias, skip, NO_LIMIT)
            sized = ssd_shape(given, self.state)
            ssd_scan.launch_tuned(given, sized, self.state, self.rows, tuning, out)


def main(quick: bool = False, model: str = "", sweep: bool = False) -> None:
    """Print a JSON line for each batch, or with --sweep for each tuning."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    small = quick or device == "cpu"
    ceilings = measured_ceilings(device, small=small)
    emit("ceilings", tb_per_s=ceilings.bytes_per_s / 1e12, tflops=ceilings.flops / 1e12)
    for name, sizes in (SMALL if small else MODELS).items():
        if not name.startswith(model):
            continue
        progress(name)
        if sweep and device == "cuda":
            _emit_sweep(name, sizes, device)
            continue
        _emit_errors(name, sizes, device)
        for rows in SMALL_DECODES if small else DECODES:
            _emit_decodes(name, sizes, rows, ceilings, device)
        for rows, tokens in SMALL_PROMPTS if small else PROMPTS:
            _emit_prompts(name, sizes, rows, tokens, device)


def drawn(sizes: RecurrentSizes, rows: int, tokens: int, device: str) -> RecurrentLayer:
    """Draw a layer and its rows: decodes with a state (if `tokens` is 1), or new prompts."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=device)

    count = rows * tokens
    order = torch.randperm(rows, device=device).int()
    state_rows = StateRows(
        torch.arange(0, count + 1, tokens, dtype=torch.int32, device=device),
        torch.full((rows,), tokens + (tokens == 1), dtype=torch.int32, device=device),
        order,
        order,
        torch.ones_like(order),
        torch.ones_like(order),
        rows if tokens == 1 else 0,
    )
    return RecurrentLayer(
        sizes,
        x=normal(count, sizes.channels).to(DTYPE),
        steps=normal(2, count, sizes.heads).to(DTYPE),
        gate=normal(count, sizes.inner).to(DTYPE),
        taps=normal(sizes.channels, 4).to(DTYPE),
        by_head=normal(3, sizes.heads) - 1,
        norm=normal(sizes.norm_group).to(DTYPE),
        kept=normal(rows, sizes.channels, 3).to(DTYPE),
        state=normal(rows, sizes.heads, sizes.lines, sizes.columns) * 0.1,
        rows=state_rows,
    )


def _emit_errors(name: str, sizes: RecurrentSizes, device: str) -> None:
    for words, tokens in (("a step", 1), ("a prompt", 300)):
        layer = drawn(sizes, 2, tokens, device)
        kept, state = layer.kept.clone(), layer.state.clone()
        got = layer.all(ops_for(torch.device(device)))
        after = layer.state.clone()
        layer.kept.copy_(kept)
        layer.state.copy_(state)
        wanted = layer.all(torch_ops())
        emit(
            f"{name} error of {words}", output=_error(got, wanted), state=_error(after, layer.state)
        )


def _error(got: Tensor, wanted: Tensor) -> float:
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


def _emit_decodes(
    name: str, sizes: RecurrentSizes, rows: int, ceilings: Ceilings, device: str
) -> None:
    layers = [drawn(sizes, rows, 1, device) for _ in range(LAYERS)]
    times = _times(layers, device)
    size = 2 * layers[0].state.numel() * layers[0].state.itemsize
    rate = size / times["recur_us"] * 1e6
    emit(
        f"{name} decode {rows}",
        **times,
        state_tb_per_s=rate / 1e12,
        share=rate / ceilings.bytes_per_s,
    )


def _emit_prompts(name: str, sizes: RecurrentSizes, rows: int, tokens: int, device: str) -> None:
    layers = [drawn(sizes, rows, tokens, device) for _ in range(2)]
    times = _times(layers, device)
    rate = rows * tokens / times["all_us"] * 1e6
    emit(f"{name} prompt {rows} x {tokens}", **times, tokens_per_s_of_a_layer=rate)


def _times(layers: Sequence[RecurrentLayer], device: str) -> dict[str, float]:
    ops = ops_for(torch.device(device))
    outputs = [layer.gate.clone() for layer in layers]
    parts: dict[str, Callable[[RecurrentLayer, Tensor], object]] = {
        "conv_us": lambda layer, _: layer.conv(ops),
        "recur_us": lambda layer, _: layer.recur(ops, layer.x),
        "norm_us": lambda layer, out: layer.normed(ops, out),
        "all_us": lambda layer, _: layer.all(ops),
    }
    return {
        name: _seconds(partial(_each, part, layers, outputs), device) / len(layers) * 1e6
        for name, part in parts.items()
    }


def _each(
    part: Callable[[RecurrentLayer, Tensor], object],
    layers: Sequence[RecurrentLayer],
    outputs: Sequence[Tensor],
) -> None:
    for layer, out in zip(layers, outputs, strict=True):
        part(layer, out)


def _seconds(call: Callable[[], object], device: str) -> float:
    return replayed_seconds(call) if device == "cuda" else seconds_of(call, "cpu", repeats=2)


def _emit_sweep(name: str, sizes: RecurrentSizes, device: str) -> None:
    for rows, tokens in PROMPTS[:2]:
        layer = drawn(sizes, rows, tokens, device)
        for tuning in _tunings(sizes):
            try:
                took = replayed_seconds(partial(layer.scan, tuning, layer.gate)) * 1e6
            except OutOfResources:
                took = None
            emit(
                f"{name} scan {rows} x {tokens}",
                columns=tuning.columns,
                warps=tuning.warps,
                stages=tuning.stages,
                us=took,
            )


def _tunings(sizes: RecurrentSizes) -> Iterator[ScanTuning]:
    most_warps = (1, 2, 4) if sizes.is_delta else (1, 2)  # four are wrong there (`scan_tuning`)
    for columns, warps, stages in itertools.product((16, 32), most_warps, (1, 2, 3)):
        if columns <= (sizes.columns if sizes.is_delta else sizes.lines):
            yield ScanTuning(columns, warps, stages)


if __name__ == "__main__":
    typer.run(main)
