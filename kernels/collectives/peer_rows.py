"""The exchange of rows of numbers: ranks write directly into each other's memory (peer memory).

    buffer of a rank    (3 turns, rows, ranks, columns), filled with a sentinel
    rank r in turn t    writes its row to [t % 3, row, r] in the buffer of every other rank
                        polls its own [t % 3, row] until no sentinel is left
                        fills its own [(t - 1) % 3, row] with the sentinel again
    or two-shot         writes its row only to the row's owner, rank (row % ranks)
                        the owner polls its own [t % 3, row], and writes the sum as its row
                        other ranks poll their own [t % 3, row, owner]

With one-shot, each of N ranks sends N - 1 times its rows, with two-shot 2 (N - 1) / N times.
Two-shot has the latency of two transfers, so it is used only for many rows and more than two ranks.

The sentinel is a number with all bits set: a NaN that no kernel computes, or an integer that is
never sent. A place that does not have the sentinel has received its number. Writes may arrive in
any order, and no flags or fences are needed. NCCL's LL and TensorRT-LLM's Lamport kernels use the
same method.

Each rank counts the turns of each row in device memory, so that a replayed graph continues from the
last turn. The count repeats 0, 1, 2, because an unbounded count would overflow after days.

A buffer has parts for three turns for this reason. In turn t, a rank refills the part that it read
in turn t - 1. Another rank writes to this part in turn t + 2, after its own turn t + 1 has ended.
Its turn t + 1 needs numbers that the first rank sends in turn t + 1. By then, the first rank's turn
t has ended, so the part has been refilled. A rank ends a turn only after every other rank has sent
its row. In a two-shot turn, the owner's sum shows this. Each turn may be one-shot or two-shot, if
all ranks choose the same.

A program occupies the device while it polls. There is no deadlock, for this reason. Programs start
in the order of their numbers (CUB's scans rely on this too). On each rank, the program of the first
unfinished row has therefore started. Each program sends its row before it waits, so every rank, and
the owner, gets the numbers of this row.

If a rank is lost, the others wait until `PeerRows.abandon` is called or their processes end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

TURNS = 3
# The minimum bytes per rank that a two-shot sum must save. On four H100s, one-shot was faster at
# 384 KiB and two-shot at 576 KiB. The second transfer takes 1.3 to 1.7 us.
LEAST_SAVED_BYTES = 512 << 10
_SENTINEL = -1
_ABANDONED = -(1 << 30)  # far from 0 and from overflow, because running kernels still add to it
_INTS = {2: torch.int16, 4: torch.int32}


@dataclass(frozen=True, slots=True)
class PeerRows:
    """The exchange buffers of all ranks, mapped into one rank's address space.

    `own` (3, rows, ranks, columns) int16 or int32 is this rank's buffer. `addresses` (ranks,) int64
    has the address of each rank's buffer in this address space. `turns` (rows,) int32 has the next
    turn of each row, 0 to 2. `least_saved` is the minimum of bytes that a two-shot sum must save.
    It is the same on all ranks.
    """

    rank: int
    own: Tensor
    addresses: Tensor
    turns: Tensor
    least_saved: int = LEAST_SAVED_BYTES

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return self.own.shape[2]

    @property
    def num_rows(self) -> int:
        """The maximum number of rows that are exchanged together."""
        return self.own.shape[1]

    @property
    def columns(self) -> int:
        """The number of columns of a row."""
        return self.own.shape[3]

    def fits(self, rows: int, columns: int, dtype: torch.dtype) -> bool:
        """Return whether products (rows, columns) of `dtype` fit into the buffers."""
        return rows > 0 and columns == self.columns and ints_of(dtype) == self.own.dtype

    def is_two_shot(self, rows: int) -> bool:
        """Return whether `rows` rows in one launch are summed two-shot."""
        ranks, sent = self.num_ranks, rows * self.columns * self.own.itemsize
        return ranks > 2 and sent * (ranks - 1) * (ranks - 2) // ranks >= self.least_saved

    def abandon(self) -> None:
        """Let waiting and later kernels continue, with undefined numbers.

        On CUDA, call this on a stream that does not wait for these kernels.
        """
        # Must be first, because the writes below let kernels that read the turns continue.
        self.turns.fill_(_ABANDONED)
        self.own.zero_()


@dataclass(frozen=True, slots=True)
class PeerProduct:
    """A rank's part of a product. The next kernel that reads the product sums all ranks' parts.

    `part` is (T, H), or split-K parts (S, T, H). All ranks must read it once, in the same kernel.
    """

    part: Tensor
    peers: PeerRows


def ints_of(dtype: torch.dtype) -> torch.dtype | None:
    """Return the integer dtype with the width of `dtype`, or None if `dtype` is not supported."""
    return _INTS.get(dtype.itemsize) if dtype.is_floating_point else None


def open_rows(rank: int, buffers: Sequence[Tensor]) -> PeerRows:
    """Open the mapped buffers of all ranks, and fill this rank's buffer with the sentinel.

    Before the first collective, the buffers of all ranks must have been filled, on the device.
    """
    own = buffers[rank].fill_(_SENTINEL)
    addresses = torch.tensor([one.data_ptr() for one in buffers], dtype=torch.int64)
    # Fill with a kernel here, because CUDA loads a kernel at its first launch, and may wait for the
    # device then. `abandon`, which must not wait, launches the same kernel.
    turns = torch.empty(own.shape[1], dtype=torch.int32, device=own.device).fill_(0)
    return PeerRows(rank, own, addresses.to(own.device), turns)


@triton.jit
def row_of_turn(turn: tl.tensor, row: tl.tensor, num_rows: tl.tensor, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the offset of this turn's row in a buffer, in numbers.

    SIZE is the number of columns of all ranks. If the turn is negative (after `abandon`), kernels
    wait for no rank, and use the first of the three parts.
    """
    return (tl.maximum(turn, 0) % 3 * num_rows + row) * SIZE


@triton.jit
def send(
    bits: tl.tensor,
    inside: tl.tensor,
    column: tl.tensor,
    place: tl.tensor,
    own: tl.tensor,
    addresses: tl.tensor,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Write the numbers of a row, as integers, to the buffers of all other ranks at `place`."""
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            send_to(peer, bits, inside, column, place, own, addresses, RANK, WIDTH)


@triton.jit
def send_to(
    peer: tl.tensor,
    bits: tl.tensor,
    inside: tl.tensor,
    column: tl.tensor,
    place: tl.tensor,
    own: tl.tensor,
    addresses: tl.tensor,
    RANK: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Write the numbers of a row to the buffer of one rank, like `send`."""
    OTHER: tl.constexpr = 0x7FFF if own.dtype.element_ty.primitive_bitwidth == 16 else 0x7FFFFFFF
    replaced = tl.full(bits.shape, OTHER, bits.dtype)
    sent = tl.where(bits == -1, replaced, bits)
    start = tl.multiple_of(tl.load(addresses + peer).to(own.dtype), 16)
    tl.store(start + place + RANK * WIDTH + column, sent, mask=inside)


@triton.jit
def take(source: tl.tensor, inside: tl.tensor, turn: tl.tensor) -> tl.tensor:
    """Wait until all numbers that another rank writes to `source` have arrived, and return them."""
    bits = tl.load(source, mask=inside, other=0, volatile=True)
    while (tl.max((bits == -1).to(tl.int32)) > 0) & (turn >= 0):
        bits = tl.load(source, mask=inside, other=0, volatile=True)
    return bits


@triton.jit
def wait(source: tl.tensor, inside: tl.tensor, turn: tl.tensor) -> None:
    """Wait like `take`, but return nothing: the compiler rejects loops with unused results."""
    missing = tl.max((tl.load(source, mask=inside, other=0, volatile=True) == -1).to(tl.int32))
    while (missing > 0) & (turn >= 0):
        missing = tl.max((tl.load(source, mask=inside, other=0, volatile=True) == -1).to(tl.int32))


@triton.jit
def mark_again(
    turn: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    own: tl.tensor,
    num_rows: tl.tensor,
    RANKS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Fill the part that was read in the previous turn with the sentinel."""
    place = row_of_turn(turn + 2, row, num_rows, RANKS * WIDTH)
    marks = tl.full(column.shape, -1, own.dtype.element_ty)
    for peer in tl.static_range(RANKS):
        tl.store(own + place + peer * WIDTH + column, marks, mask=column < WIDTH)


@triton.jit
def end_turn(turn: tl.tensor, row: tl.tensor, turns: tl.tensor) -> None:
    """Advance the row to the next turn. Call after the numbers of all other ranks have arrived.

    The count is changed by adding, not by storing, so that it stays negative if `abandon` has set
    it in the meantime. All threads load the count before they wait.
    """
    tl.atomic_add(turns + row, tl.where(turn == 2, -2, 1), sem="relaxed")


@triton.jit
def summed_over_ranks(
    mine: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    own: tl.tensor,
    addresses: tl.tensor,
    turns: tl.tensor,
    num_rows: tl.tensor,
    TWO_SHOT: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """Sum the rows of all ranks in rank order, like `load_summed` sums gathered rows.

    Returns float32, which the caller rounds to the dtype of `mine`. A two-shot sum is already
    rounded.
    """
    inside = column < WIDTH
    turn = tl.load(turns + row)
    place = row_of_turn(turn, row, num_rows, RANKS * WIDTH)
    bits = mine.to(own.dtype.element_ty, bitcast=True)
    owner = row % RANKS
    if TWO_SHOT:
        if owner != RANK:
            send_to(owner, bits, inside, column, place, own, addresses, RANK, WIDTH)
    else:
        send(bits, inside, column, place, own, addresses, RANK, RANKS, WIDTH)
    mark_again(turn, row, column, own, num_rows, RANKS, WIDTH)
    source = own + place + column
    if TWO_SHOT:
        if owner == RANK:
            total = _added(mine, source, inside, turn, RANK, RANKS, WIDTH).to(mine.dtype)
            summed = total.to(own.dtype.element_ty, bitcast=True)
            send(summed, inside, column, place, own, addresses, RANK, RANKS, WIDTH)
        else:
            total = take(source + owner * WIDTH, inside, turn).to(mine.dtype, bitcast=True)
        total = total.to(tl.float32)
    else:
        total = _added(mine, source, inside, turn, RANK, RANKS, WIDTH)
    end_turn(turn, row, turns)
    return total


@triton.jit
def _added(
    mine: tl.tensor,
    source: tl.tensor,
    inside: tl.tensor,
    turn: tl.tensor,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """Add up the rows of all ranks in rank order. Those of other ranks begin at `source`."""
    total = mine.to(tl.float32)
    for peer in tl.static_range(RANKS):
        if peer == RANK:
            part = mine
        else:
            part = take(source + peer * WIDTH, inside, turn).to(mine.dtype, bitcast=True)
        if peer == 0:
            total = part.to(tl.float32)
        else:
            total += part.to(tl.float32)
    return total
