"""The ordering of (token, expert) pairs by expert, in tiles that one program each computes.

Pair t * k + j is token t with its j-th expert. A tile has pairs of only one expert:

    tiles      [ 0 3 9 . ][ 1 4 5 6 ][ 8 . . . ]      a dot: no pair
    expert         2          5          5            -1: an unused tile

The maximum number of tiles depends only on sizes, so that the launch can be captured in a CUDA
graph. The experts of tiles, in device memory, show which tiles are used. Nothing is counted with
atomics, so the order is always the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.dependent_launch import dependent_launch, launch_dependents_and_wait
from kernels.launch.rounding import cdiv, next_power_of_2

_CHUNKS_AT_ONCE = 64
COUNTED_ALONE = 512  # maximum number of pairs for which each program counts all pairs itself

# Entries (most, chunk): with up to `most` pairs in total, a program places `chunk` pairs.
CHUNKS = ((16, 16), (COUNTED_ALONE, 128), (8192, 128))
_LARGEST_CHUNK = 512


@dataclass(frozen=True, slots=True)
class PairTiles:
    """The pairs in each tile (tiles, rows) int32, and the expert of each tile (tiles,)."""

    pairs: Tensor
    experts: Tensor


def most_tiles(pairs: int, num_experts: int, rows: int) -> int:
    """Return the maximum number of tiles of `rows` pairs.

    The last tile of each used expert may be partial.
    """
    return min(cdiv(pairs, rows) + min(num_experts, pairs), pairs)


def chunk_for(num_pairs: int) -> int:
    """Choose how many (token, expert) pairs one program places in tiles."""
    return next((chunk for most, chunk in CHUNKS if num_pairs <= most), _LARGEST_CHUNK)


def reference(experts: Tensor, num_experts: int, rows: int) -> PairTiles:
    """Order the pairs of experts (T, k) int32 -> tiles. Plain PyTorch. Waits for the device."""
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


@triton.jit
def _counted(
    experts: tl.tensor,
    start: tl.tensor,
    num_pairs: tl.tensor,
    E_PADDED: tl.constexpr,
    CHUNK: tl.constexpr,
) -> tl.tensor:
    """Count the pairs of each expert, (E_PADDED,), in the chunk that begins at `start`."""
    index = start + tl.arange(0, CHUNK)
    given = tl.load(experts + index, mask=index < num_pairs, other=-1)
    same = given[:, None] == tl.arange(0, E_PADDED)[None, :]
    return tl.sum(same.to(tl.int32), axis=0)


@triton.jit(do_not_specialize=["num_pairs"])
def _count_kernel(
    experts: tl.tensor,
    counts: tl.tensor,
    num_pairs: tl.tensor,
    E: tl.constexpr,
    E_PADDED: tl.constexpr,
    CHUNK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Count the pairs of each expert in one chunk, into counts (chunks, E)."""
    launch_dependents_and_wait(DEPENDENT)
    chunk, expert = tl.program_id(0), tl.arange(0, E_PADDED)
    found = _counted(experts, chunk * CHUNK, num_pairs, E_PADDED, CHUNK)
    tl.store(counts + chunk * E + expert, found, mask=expert < E)


@triton.jit(do_not_specialize=["num_pairs", "num_chunks", "num_tiles"])
def _place_kernel(
    experts: tl.tensor,
    counts: tl.tensor,
    pairs: tl.tensor,
    owners: tl.tensor,
    num_pairs: tl.tensor,
    num_chunks: tl.tensor,
    num_tiles: tl.tensor,
    E: tl.constexpr,
    E_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    COUNT: tl.constexpr,
    AT_ONCE: tl.constexpr,
    CHUNK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Place the pairs of one chunk in tiles, and pad the last tile of one expert.

    The last program also writes -1 as the expert of unused tiles.
    """
    launch_dependents_and_wait(DEPENDENT)
    program, expert = tl.program_id(0), tl.arange(0, E_PADDED)
    total = tl.zeros([E_PADDED], tl.int32)
    before = tl.zeros([E_PADDED], tl.int32)
    if COUNT:
        for chunk in range(num_chunks):
            found = _counted(experts, chunk * CHUNK, num_pairs, E_PADDED, CHUNK)
            total += found
            before += tl.where(chunk < program, found, 0)
    else:
        for start in range(0, num_chunks, AT_ONCE):
            chunk = start + tl.arange(0, AT_ONCE)
            wanted = (chunk < num_chunks)[:, None] & (expert < E)[None, :]
            found = tl.load(counts + chunk[:, None] * E + expert[None, :], mask=wanted, other=0)
            total += tl.sum(found, axis=0)
            before += tl.sum(tl.where((chunk < program)[:, None], found, 0), axis=0)
    tiles = (total + ROWS - 1) // ROWS
    first = tl.cumsum(tiles, axis=0) - tiles

    index = tl.arange(0, CHUNK)
    pair = program * CHUNK + index
    given = tl.load(experts + pair, mask=pair < num_pairs, other=-1)
    earlier = (given[:, None] == given[None, :]) & (index[None, :] < index[:, None])
    rank = tl.sum(earlier.to(tl.int32), axis=1)
    own = given[:, None] == expert[None, :]
    base = tl.sum(tl.where(own, (first * ROWS + before)[None, :], 0), axis=1)
    tl.store(pairs + base + rank, pair, mask=pair < num_pairs)

    if program < E:
        own_first = tl.sum(tl.where(expert == program, first, 0), axis=0)
        own_tiles = tl.sum(tl.where(expert == program, tiles, 0), axis=0)
        own_total = tl.sum(tl.where(expert == program, total, 0), axis=0)
        slot = own_total + tl.arange(0, ROWS)
        tl.store(pairs + own_first * ROWS + slot, num_pairs, mask=slot < own_tiles * ROWS)
        for start in range(0, own_tiles, CHUNK):
            tile = start + index
            tl.store(owners + own_first + tile, program, mask=tile < own_tiles)
        if program == E - 1:
            for start in range(own_first + own_tiles, num_tiles, CHUNK):
                tile = start + index
                tl.store(owners + tile, -1, mask=tile < num_tiles)


def launch(experts: Tensor, num_experts: int, rows: int) -> PairTiles:
    """Compute `reference` on the device. The pairs of unused tiles are not written."""
    num_pairs = experts.numel()
    tiles = most_tiles(num_pairs, num_experts, rows)
    pairs = torch.empty((tiles, rows), dtype=torch.int32, device=experts.device)
    owners = torch.empty(tiles, dtype=torch.int32, device=experts.device)
    if not num_pairs:
        return PairTiles(pairs, owners)
    early, padded = dependent_launch(experts.device), next_power_of_2(num_experts)
    alone, chunk, counts = num_pairs <= COUNTED_ALONE, chunk_for(num_pairs), experts
    chunks = cdiv(num_pairs, chunk)
    if not alone:
        counts = torch.empty((chunks, num_experts), dtype=torch.int32, device=experts.device)
        _count_kernel[(chunks,)](
            experts, counts, num_pairs, E=num_experts, E_PADDED=padded, CHUNK=chunk, **early
        )
    _place_kernel[(max(chunks, num_experts),)](
        experts,
        counts,
        pairs,
        owners,
        num_pairs,
        chunks,
        tiles,
        E=num_experts,
        E_PADDED=padded,
        ROWS=rows,
        COUNT=alone,
        AT_ONCE=_CHUNKS_AT_ONCE,
        CHUNK=chunk,
        num_warps=8,
        **early,
    )
    return PairTiles(pairs, owners)


def by_sorting(experts: Tensor, num_experts: int, rows: int) -> PairTiles:
    """Compute `reference` on any device without waiting, if experts are too many for a kernel."""
    flat, device = experts.flatten(), experts.device
    tiles = most_tiles(flat.numel(), num_experts, rows)
    pairs = torch.full((tiles * rows,), flat.numel(), dtype=torch.int32, device=device)
    given, pair = flat.sort(stable=True)
    bounds = torch.arange(num_experts + 1, dtype=flat.dtype, device=device)
    starts = torch.searchsorted(given, bounds)
    needed = (starts.diff() + rows - 1) // rows
    ends = needed.cumsum(0)
    first, own = (ends - needed)[given] * rows, starts[given]
    pairs[first - own + torch.arange(flat.numel(), device=device)] = pair.int()
    owners = torch.searchsorted(ends, torch.arange(tiles, device=device), right=True)
    owners = owners.masked_fill(owners == num_experts, -1).int()
    return PairTiles(pairs.view(tiles, rows), owners)
