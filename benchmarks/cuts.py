"""Decode attention with its keys cut in ever smaller units: what is fastest, and what is chosen?

    python -m benchmarks.cuts [--quick]

A line has a batch of decodes, the time by the number of units that its longest row is cut in, the
number that `kernels.unit_sizes` chooses, and how much longer that takes than the fastest. The
numbers that it chooses by (`kernels.tuning`) were fitted to such times, of whole steps of an 8B.
Without a GPU, and with --quick, a few small batches; without one nothing is cut, and times say
nothing. Knows only kernels.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import typer

from benchmarks.attention import (
    DTYPE,
    HEAD_DIM,
    KV_HEADS,
    attention_seconds,
    make_batch,
    mixed_lengths,
)
from benchmarks.record import emit
from kernels.tuning import decode_tuning
from kernels.unit_sizes import best_cut, possible_cuts

EVEN = [
    *((rows, 8_000) for rows in (1, 2, 4, 8, 16)),
    *((rows, 4_000) for rows in (16, 32, 96)),
    *((rows, 2_030) for rows in (32, 48, 64, 96, 128)),
    *((rows, 1_100) for rows in (8, 32, 64, 128, 256)),
    (1, 100_000),
]
MOST_TRIED = 12  # sizes of a batch


def main(quick: bool = False) -> None:
    """Print one JSON line a batch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    small = quick or device == "cpu"
    even = [(1, 300), (4, 200)] if small else EVEN
    batches = {f"{rows} x {context}": [context] * rows for rows, context in even}
    if not small:
        batches["64 x 128..32k"] = mixed_lengths(64, 128, 32_768)
    for name, lengths in batches.items():
        emit_cuts(name, lengths, device)


def emit_cuts(name: str, lengths: list[int], device: str) -> None:
    """Print the line of one batch."""
    q, kv, layout = make_batch(lengths, 1, device)
    array, tuning = np.array(lengths, np.int32), decode_tuning(HEAD_DIM, DTYPE)
    possible = possible_cuts(array, tuning, KV_HEADS)
    spread = np.linspace(0, len(possible) - 1, MOST_TRIED).round().astype(int).tolist()
    chosen = best_cut(array, tuning, KV_HEADS)
    took: dict[int, float] = {}
    for cut in sorted({chosen, *(possible[index] for index in spread)}, reverse=True):
        units = torch.tensor([cut], dtype=torch.int32, device=device)
        took[_pieces(lengths, cut)] = attention_seconds((q, kv, replace(layout, units=units)))
    emit(
        name,
        us={pieces: round(time * 1e6, 1) for pieces, time in took.items()},
        chosen=_pieces(lengths, chosen),
        over_best=took[_pieces(lengths, chosen)] / min(took.values()),
    )


def _pieces(lengths: list[int], cut: tuple[int, int]) -> int:
    """Units of the longest row."""
    return -(-max(lengths) // cut[0])


if __name__ == "__main__":
    typer.run(main)
