"""Orders the pairs of token and expert by expert, in tiles of rows that one program multiplies.

Pair t * k + j is the j-th expert of token t. Every expert's pairs, in order, fill whole tiles:

    tiles      [ 0 3 9 . ][ 1 4 5 6 ][ 8 . . . ]      a dot: no pair
    expert         2          5          5            -1: a tile that no expert needs

How many tiles there may be follows from the sizes alone, so that the launch can be captured in a
CUDA graph; which of them are in use is in device memory. Nothing is counted with atomics: the order
is the same each time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.dependent_launch import dependent_launch, launch_dependents_and_wait
from kernels.launch.rounding import cdiv, next_power_of_2

_COUNTED_AT_ONCE = 64
_PLACED_AT_ONCE = 1024
COUNTED_ALONE = 1024  # so many pairs each program counts by itself


@dataclass(frozen=True, slots=True)
class PairTiles:
    """`pairs` (tiles, rows) int32, where there is none the number of pairs; `experts` (tiles,)."""

    pairs: Tensor
    experts: Tensor


def most_tiles(pairs: int, num_experts: int, rows: int) -> int:
    """How many tiles of `rows` there may be: of each expert in use the last may not be full."""
    return min(cdiv(pairs, rows) + min(num_experts, pairs), pairs)


def reference(experts: Tensor, num_experts: int, rows: int) -> PairTiles:
    """experts (T, k) int32 -> tiles of `rows` pairs. Plain PyTorch; waits for the device."""
    flat = experts.flatten()
    tiles = most_tiles(flat.numel(), num_experts, rows)
    pairs = torch.full((tiles, rows), flat.numel(), dtype=torch.int32, device=experts.device)
    owners = torch.full((tiles,), -1, dtype=torch.int32, device=experts.device)
    first = 0
    for expert in range(num_experts):
        own = (flat == expert).nonzero().flatten().int()
        count = cdiv(own.numel(), rows)
        pairs[first : first + count].view(-1)[: own.numel()] = own
        owners[first : first + count] = expert
        first += count
    return PairTiles(pairs, owners)


@triton.jit(do_not_specialize=["num_pairs"])
def _count_kernel(
    experts: tl.tensor,
    counts: tl.tensor,
    num_pairs: tl.tensor,
    CHUNK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """How many pairs an expert has."""
    launch_dependents_and_wait(DEPENDENT)
    expert, index = tl.program_id(0), tl.arange(0, CHUNK)
    found = tl.zeros([CHUNK], tl.int32)
    for start in range(0, num_pairs, CHUNK):
        given = tl.load(experts + start + index, mask=start + index < num_pairs, other=-1)
        found += (given == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(found, axis=0))


@triton.jit(do_not_specialize=["num_pairs", "num_tiles"])
def _place_kernel(
    experts: tl.tensor,
    counts: tl.tensor,
    pairs: tl.tensor,
    owners: tl.tensor,
    num_pairs: tl.tensor,
    num_tiles: tl.tensor,
    E: tl.constexpr,
    E_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    COUNT: tl.constexpr,
    COUNTED: tl.constexpr,
    CHUNK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Write the tiles of one expert; the last one's program also marks those that are left."""
    launch_dependents_and_wait(DEPENDENT)
    own, expert = tl.program_id(0), tl.arange(0, E_PADDED)
    if COUNT:
        count = tl.zeros([E_PADDED], tl.int32)
        part = tl.arange(0, COUNTED)
        for start in range(0, num_pairs, COUNTED):
            given = tl.load(experts + start + part, mask=start + part < num_pairs, other=-1)
            count += tl.sum((given[:, None] == expert[None, :]).to(tl.int32), axis=0)
    else:
        count = tl.load(counts + expert, mask=expert < E, other=0)
    tiles = (count + ROWS - 1) // ROWS
    first = tl.sum(tl.where(expert < own, tiles, 0), axis=0)
    own_tiles = tl.sum(tl.where(expert == own, tiles, 0), axis=0)
    index = tl.arange(0, CHUNK)
    rank = 0
    for start in range(0, num_pairs, CHUNK):
        given = tl.load(experts + start + index, mask=start + index < num_pairs, other=-1)
        mine = (given == own).to(tl.int32)
        place = first * ROWS + rank + tl.cumsum(mine, axis=0) - 1
        tl.store(pairs + place, start + index, mask=mine == 1)
        rank += tl.sum(mine, axis=0)
    for start in range(rank, own_tiles * ROWS, CHUNK):
        slot = start + index
        tl.store(pairs + first * ROWS + slot, num_pairs, mask=slot < own_tiles * ROWS)
    for start in range(0, own_tiles, CHUNK):
        tile = start + index
        tl.store(owners + first + tile, own, mask=tile < own_tiles)
    if own == E - 1:
        for start in range(first + own_tiles, num_tiles, CHUNK):
            tile = start + index
            tl.store(owners + tile, -1, mask=tile < num_tiles)


def launch(experts: Tensor, num_experts: int, rows: int) -> PairTiles:
    """As `reference`, on the device; pairs of tiles that no expert needs are not written."""
    num_pairs = experts.numel()
    tiles = most_tiles(num_pairs, num_experts, rows)
    pairs = torch.empty((tiles, rows), dtype=torch.int32, device=experts.device)
    owners = torch.empty(tiles, dtype=torch.int32, device=experts.device)
    if not num_pairs:
        return PairTiles(pairs, owners)
    early, alone, counts = dependent_launch(experts.device), num_pairs <= COUNTED_ALONE, experts
    if not alone:
        counts = torch.empty(num_experts, dtype=torch.int32, device=experts.device)
        _count_kernel[(num_experts,)](experts, counts, num_pairs, CHUNK=_PLACED_AT_ONCE, **early)
    _place_kernel[(num_experts,)](
        experts,
        counts,
        pairs,
        owners,
        num_pairs,
        tiles,
        E=num_experts,
        E_PADDED=next_power_of_2(num_experts),
        ROWS=rows,
        COUNT=alone,
        COUNTED=_COUNTED_AT_ONCE,
        CHUNK=_PLACED_AT_ONCE,
        **early,
    )
    return PairTiles(pairs, owners)
