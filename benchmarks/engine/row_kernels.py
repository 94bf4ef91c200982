"""The kernels between products of a model in fp8, in bytes a second, and in other forms.

    python -m benchmarks.engine.row_kernels [--quick]

Of Llama 3.1 8B's layer: the norm with its sum, the rotation that writes keys and values, the gate,
and the kernel that quantises what attention wrote; for few and many rows. `serves` is what the
engine launches; others have other numbers of warps in a program, or of heads. Bytes are those that
are read and written once. Tensors are several, so that none stays in the cache. Needs a GPU:
elsewhere it says what would be measured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from unittest.mock import patch

import torch
import typer
from torch import Tensor

from benchmarks.engine.fp8_products import COLD_BYTES, EPS, HEAD_DIM, KV_HEADS, Replays
from benchmarks.record import emit, progress
from kernels.attention import rope_write_kv
from kernels.experts.gate import SILU
from kernels.launch.rounding import cdiv
from kernels.linear import fp8_rows
from kernels.norms import add_rms_norm, gate_mul

ROWS = (1, 32, 128, 256, 2_048, 8_192)
HIDDEN, INNER, QUERY_HEADS = 4096, 14_336, 32
QKV = (QUERY_HEADS + 2 * KV_HEADS) * HEAD_DIM
MOST_COPIES = 64
Call = Callable[[], object]


def main(quick: bool = False) -> None:
    """Print one JSON line for each kernel and number of rows."""
    if not torch.cuda.is_available():
        progress("no GPU: for each of these, rows " + ", ".join(f"{rows:,}" for rows in ROWS))
        for name in KERNELS:
            emit(name)
        return
    device, replays = torch.device("cuda", 0), Replays()
    for name, kernel in KERNELS.items():
        progress(name)
        for rows in (256, 8_192) if quick else ROWS:
            if rows <= MOST_ROWS.get(name, rows):
                _emit(f"{name}, {rows:,} rows", *kernel(rows, device), replays)


def _emit(name: str, num_bytes: int, ways: dict[str, list[Call]], replays: Replays) -> None:
    times = {way: _seconds(calls, replays) for way, calls in ways.items()}
    emit(
        name,
        gb_per_s=num_bytes / times["serves"] / 1e9,
        **{f"{way}_us": took * 1e6 for way, took in times.items()},
    )


def _seconds(calls: list[Call], replays: Replays) -> float:
    def each() -> None:
        for call in calls:
            call()

    return replays.seconds(each) / len(calls)


def _copies(num_bytes: int) -> range:
    return range(min(max(cdiv(COLD_BYTES, num_bytes), 2), MOST_COPIES))


def _gate(rows: int, device: torch.device) -> tuple[int, dict[str, list[Call]]]:
    num_bytes = rows * INNER * (2 * 2 + 1)
    inputs = [_drawn(rows, 2 * INNER, device) for _ in _copies(num_bytes)]
    ways = {"serves": gate_mul.FP8_WARPS, "8 warps": 8, "16 warps": 16, "32 warps": 32}
    calls: dict[str, list[Call]] = {
        name: [partial(gate_mul.launch_fp8, x, SILU, "token", warps) for x in inputs]
        for name, warps in ways.items()
    }
    plain = _patched(gate_mul, "_is_fast", lambda *_: False, calls["32 warps"])
    return num_bytes, {**calls, "32 warps, no assembly": plain}


def _norm(rows: int, device: torch.device, parts: int = 0) -> tuple[int, dict[str, list[Call]]]:
    num_bytes = rows * HIDDEN * ((4 * parts or 2) + 2 + 2 + 1)
    shape = (parts, rows, HIDDEN) if parts else (rows, HIDDEN)
    dtype = torch.float32 if parts else torch.bfloat16
    inputs = [
        (torch.randn(shape, device=device, dtype=dtype), _drawn(rows, HIDDEN, device))
        for _ in _copies(num_bytes)
    ]
    weight = _drawn(1, HIDDEN, device)[0]
    calls: list[Call] = [
        partial(add_rms_norm.launch_fp8, x, residual, weight, EPS, "token")
        for x, residual in inputs
    ]
    return num_bytes, _with_warps(add_rms_norm, calls)


def _norm_of_parts(rows: int, device: torch.device) -> tuple[int, dict[str, list[Call]]]:
    """As after a product that is left in two parts."""
    return _norm(rows, device, parts=2)


def _quantised(rows: int, device: torch.device) -> tuple[int, dict[str, list[Call]]]:
    num_bytes = rows * HIDDEN * 3
    inputs = [_drawn(rows, HIDDEN, device) for _ in _copies(num_bytes)]
    calls: list[Call] = [partial(fp8_rows.launch, x, "token") for x in inputs]
    return num_bytes, _with_warps(fp8_rows, calls)


def _rotation(rows: int, device: torch.device) -> tuple[int, dict[str, list[Call]]]:
    num_bytes = rows * QKV * 2 * 2
    table = torch.rand(rows, HEAD_DIM, device=device)
    slots = torch.arange(rows, device=device)
    shape = (cdiv(rows, 16), 2, KV_HEADS, 16, HEAD_DIM)
    calls: list[Call] = [
        partial(
            rope_write_kv.launch,
            _drawn(rows, QKV, device),
            slots,
            table,
            None,
            None,
            EPS,
            torch.zeros(shape, dtype=torch.bfloat16, device=device),
            slots,
            QUERY_HEADS,
            torch.bfloat16,
        )
        for _ in _copies(num_bytes)
    ]
    ways = {"serves": calls}
    for heads in (4, 8, 16, 32):
        ways[f"{heads} heads"] = _patched(rope_write_kv, "_HEADS", heads, calls)
    return num_bytes, ways


def _drawn(rows: int, width: int, device: torch.device) -> Tensor:
    return torch.randn(rows, width, device=device, dtype=torch.bfloat16)


def _with_warps(module: ModuleType, calls: list[Call]) -> dict[str, list[Call]]:
    ways = {"serves": calls}
    for warps in (4, 8, 16):
        ways[f"{warps} warps"] = _patched(module, "row_warps", _always(warps), calls)
    return ways


def _always(warps: int) -> Callable[..., int]:
    return lambda *_: warps


def _patched(module: ModuleType, name: str, value: object, calls: list[Call]) -> list[Call]:
    """The same calls, with another value of a name of the module."""

    def call(one: Call) -> None:
        with patch.object(module, name, value):
            one()

    return [partial(call, one) for one in calls]


KERNELS: dict[str, Callable[[int, torch.device], tuple[int, dict[str, list[Call]]]]] = {
    "gate in fp8": _gate,
    "norm in fp8": _norm,
    "norm of two parts in fp8": _norm_of_parts,
    "quantised": _quantised,
    "rotation": _rotation,
}

MOST_ROWS = {"norm of two parts in fp8": 256}  # of more no product is left in parts


if __name__ == "__main__":
    typer.run(main)
