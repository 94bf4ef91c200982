"""Decode attention with its keys cut in ever smaller units: what is fastest, and what is chosen?

    python -m benchmarks.cuts [--quick]

A line has a batch of decodes, the time by the number of units that its longest row is cut in, the
number that `kernels.unit_sizes` chooses, and how much longer that takes than the fastest. The
numbers that it chooses by (`kernels.tuning`) were fitted to such times, of whole steps of an 8B.
Without a GPU, and with --quick, a few small batches; there nothing is cut, and times say nothing.
Knows only kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
import typer
from torch import Tensor

from benchmarks.attention import DTYPE as KV_DTYPE
from benchmarks.attention import (
    HEAD_DIM,
    KV_HEADS,
    SCALE,
    attention_seconds,
    make_batch,
    mixed_lengths,
)
from benchmarks.ceilings import seconds_of
from benchmarks.record import emit
from kernels.batch_layout import BatchLayout
from kernels.ops import torch_ops
from kernels.tuning import decode_tuning
from kernels.unit_sizes import best_cut

EVEN = [
    *((rows, 8_000) for rows in (1, 2, 4, 8, 16)),
    *((rows, 4_000) for rows in (16, 32, 96)),
    *((rows, 2_030) for rows in (32, 48, 64, 96, 128)),
    *((rows, 1_100) for rows in (8, 32, 64, 128, 256)),
    (1, 100_000),
]
MOST_TRIED = 12  # sizes of a batch

Batch = tuple[Tensor, Tensor, BatchLayout]


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
    took: dict[int, float] = {}
    for keys, more in cuts_of(lengths):
        units = torch.tensor([[keys, more]], dtype=torch.int32, device=device)
        took[-(-max(lengths) // keys)] = _seconds((q, kv, replace(layout, units=units)), device)
    keys, _ = best_cut(np.array(lengths, np.int32), decode_tuning(HEAD_DIM, KV_DTYPE), KV_HEADS)
    chosen = -(-max(lengths) // keys)
    emit(
        name,
        us={pieces: round(time * 1e6, 1) for pieces, time in took.items()},
        chosen=chosen,
        over_best=took[chosen] / min(took.values()),
    )


def cuts_of(lengths: list[int]) -> Iterator[tuple[int, int]]:
    """Some of the cuts that a launch has room for, and the one that is chosen, coarse to fine."""
    tuning = decode_tuning(HEAD_DIM, KV_DTYPE)
    array = np.array(lengths, np.int32)
    tiles = -(-array // tuning.tile)
    finest = max(
        -(-int(tiles.sum()) // tuning.most_units(KV_HEADS)), tuning.least_keys // tuning.tile
    )
    longest = int(tiles.max())
    pieces = np.unique(np.geomspace(1, max(longest // finest, 1), MOST_TRIED).round().astype(int))
    sizes = {-(-longest // int(count)) * tuning.tile for count in pieces}
    for keys in sorted({*sizes, best_cut(array, tuning, KV_HEADS)[0]}, reverse=True):
        yield keys, int((-(-array // keys) - 1).sum())


def _seconds(batch: Batch, device: str) -> float:
    if device == "cuda":
        return attention_seconds(batch)
    attention = torch_ops().paged_attention
    return seconds_of(lambda: attention(*batch, SCALE), device)


if __name__ == "__main__":
    typer.run(main)
