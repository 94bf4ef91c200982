"""Attention and sampling kernels against what the machine can do, and against torch's own.

    python -m benchmarks.kernels [--quick]

On a GPU it measures the kernels that serve: decode as a share of the measured copy bandwidth,
prefill in TFLOP/s, both compared with torch's flash and cuDNN attention over contiguous keys;
shared prefixes read once and separately; top-k and top-p. On a CPU, or with --quick, a few small
shapes. `benchmarks.attention` prints attention as a table for people. Knows only kernels.
"""

from __future__ import annotations

import torch
import typer
from torch.nn.attention import SDPBackend

from benchmarks.attention import (
    DECODES,
    HEAD_DIM,
    KEY_BYTES,
    PREFILLS,
    Q_HEADS,
    attention_seconds,
    make_batch,
    mixed_lengths,
    shared_seconds,
    torch_seconds,
)
from benchmarks.ceilings import Ceilings, measured_ceilings
from benchmarks.filters import emit_filters
from benchmarks.record import emit, progress
from benchmarks.shared_prefix import GROUPS_OF_FOUR, Forest

SMALL_DECODES, SMALL_PREFILLS = [(1, 64), (4, 96)], [(1, 48, 64)]
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def main(quick: bool = False) -> None:
    """Print one JSON line a batch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    small = quick or device == "cpu"
    ceilings = measured_ceilings(device, small=small)
    emit("ceilings", tb_per_s=ceilings.bytes_per_s / 1e12, tflops=ceilings.flops / 1e12)
    progress("decode attention")
    for rows, context in SMALL_DECODES if small else DECODES:
        _emit_decode(f"decode {rows} x {context}", [context] * rows, ceilings, device)
    if not small:
        for rows in (16, 64, 128):
            lengths = mixed_lengths(rows, 128, 32_768)
            _emit_decode(f"decode {rows} x 128..32k", lengths, ceilings, device)
    progress("prefill attention")
    for rows, new, context in SMALL_PREFILLS if small else PREFILLS:
        _emit_prefill(rows, new, context, ceilings, device)
    if not small:
        progress("shared prefixes")
        _emit_shared()
    progress("filters")
    emit_filters(device, small=small)


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


def _emit_prefill(rows: int, new: int, context: int, ceilings: Ceilings, device: str) -> None:
    took = attention_seconds(make_batch([context] * rows, new, device))
    work = 4 * rows * new * (context - (new - 1) / 2) * Q_HEADS * HEAD_DIM
    emit(
        f"prefill {rows} x {new} of {context}",
        us=took * 1e6,
        tflops=work / took / 1e12,
        share=work / took / ceilings.flops,
        **_beside(rows, new, context, device),
    )


def _beside(rows: int, new: int, context: int, device: str) -> dict[str, float | None]:
    """What torch's kernels take, in us."""
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
        alone, together, _ = shared_seconds(forest)
        emit(f"shared {name}", alone_us=alone * 1e6, together_us=together * 1e6)


if __name__ == "__main__":
    typer.run(main)
