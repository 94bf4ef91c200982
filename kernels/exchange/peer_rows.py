"""Rows of numbers that ranks write straight into each other's memory, and how one sees them arrive.

    buffer of a rank    (3 turns, rows, ranks, columns), filled with a mark
    rank r, turn t      writes its row to [t % 3, row, r] of every other rank
                        polls its own [t % 3, row] until no mark is left
                        fills its own [(t - 1) % 3, row] with the mark again

The mark is a number with all bits set, a NaN that no kernel computes (one that comes in is changed
to another NaN). So each number says by itself that it is there: whatever order and in whatever
pieces writes arrive in, there are no flags, no fences, and a row takes one way over the link.

Each row counts its own turns, in the memory of each rank, so all that is captured in a graph goes
on where the last one has stopped. Rows need not be alike in number: a row's turns are those in
which it is there, and these are the same on all ranks.

Three turns: what is marked in turn t has been read in turn t - 1. Another rank writes there in turn
t + 2, after it has seen this rank's row of turn t + 1, which is sent after the kernel of turn t.

A rank that is gone is waited for until the process ends, as in NCCL's kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

TURNS = 3
_INTS = {2: torch.int16, 4: torch.int32}


@dataclass(frozen=True, slots=True)
class PeerRows:
    """The buffers of all ranks, as one of them has them in its address space.

    `own` (3, rows, ranks, columns) int16 or int32, of this rank; `addresses` (ranks,) int64, where
    each rank's buffer begins here; `turns` (rows,) int32.
    """

    rank: int
    own: Tensor
    addresses: Tensor
    turns: Tensor

    @property
    def num_ranks(self) -> int:
        """How many exchange."""
        return self.own.shape[2]

    def fits(self, rows: int, columns: int, dtype: torch.dtype) -> bool:
        """Whether such a product can be exchanged here."""
        _, most, _, width = self.own.shape
        return 0 < rows <= most and columns == width and ints_of(dtype) == self.own.dtype


def ints_of(dtype: torch.dtype) -> torch.dtype | None:
    """The integers as wide as numbers of `dtype`; None where such are not exchanged."""
    return _INTS.get(dtype.itemsize) if dtype.is_floating_point else None


def begun(rank: int, buffers: list[Tensor]) -> PeerRows:
    """Of the buffers of all ranks, as they are mapped here; each rank fills its own with marks.

    All ranks have to have done this before the first exchange.
    """
    own = buffers[rank].fill_(-1)
    addresses = torch.tensor([one.data_ptr() for one in buffers], dtype=torch.int64)
    turns = torch.zeros(own.shape[1], dtype=torch.int32, device=own.device)
    return PeerRows(rank, own, addresses.to(own.device), turns)


@triton.jit
def start_of(
    addresses: tl.tensor,
    own: tl.tensor,
    peer: tl.constexpr,
    offset: tl.tensor,
) -> tl.tensor:
    """Where numbers from `offset` on lie in a peer's buffer."""
    address = tl.load(addresses + peer)
    return tl.multiple_of(address.to(own.dtype), 16) + offset


@triton.jit
def without_mark(bits: tl.tensor) -> tl.tensor:
    """The same numbers as integers, where the NaN that is the mark is another NaN."""
    WIDTH: tl.constexpr = bits.dtype.primitive_bitwidth
    OTHER: tl.constexpr = 0x7FFF if WIDTH == 16 else 0x7FFFFFFF
    return tl.where(bits == -1, tl.full(bits.shape, OTHER, bits.dtype), bits)


@triton.jit
def arrived(place: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """What another rank writes to `place`, once all of it is there."""
    bits = tl.load(place, mask=inside, other=0, volatile=True)
    while tl.max((bits == -1).to(tl.int32)) > 0:
        bits = tl.load(place, mask=inside, other=0, volatile=True)
    return bits
