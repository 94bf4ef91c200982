"""The time to apply top-k and top-p before sampling: by searching, and by sorting.

Part of `benchmarks.kernels`. Knows only kernels.
"""

from __future__ import annotations

import torch

from benchmarks.ceilings import seconds_of
from benchmarks.record import emit
from kernels import keep_likeliest
from kernels.keep_likeliest import RULED_OUT
from kernels.ops import KeepLikeliest, ops_for

VOCABULARY, SMALL_VOCABULARY = 128_256, 500


def emit_filters(device: str, *, small: bool) -> None:
    """One JSON line a batch: top-p alone, and top-k with top-p."""
    vocabulary = SMALL_VOCABULARY if small else VOCABULARY
    for rows in (1, 4) if small else (1, 32, 256):
        for name, top_k in (("top-p 0.9", vocabulary), ("top-k 50, top-p 0.9", 50)):
            serving = ops_for(torch.device(device)).keep_likeliest
            took = _seconds(serving, rows, vocabulary, top_k, device)
            by_sorting = _seconds(keep_likeliest.reference, rows, vocabulary, top_k, device)
            emit(f"{rows} x {name}", us=took * 1e6, sorted_us=by_sorting * 1e6)


def _seconds(way: KeepLikeliest, rows: int, vocabulary: int, top_k: int, device: str) -> float:
    logits = torch.randn((rows, vocabulary), device=device) * 3
    ones = torch.ones(rows, device=device)
    top_ks = torch.full((rows,), top_k, device=device)

    def call() -> None:
        limits_k = top_k < vocabulary
        way(logits.clone(), ones, top_ks, ones * 0.9, ones * RULED_OUT, limits_k=limits_k)

    return seconds_of(call, device)
