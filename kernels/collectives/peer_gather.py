"""The gathers of all ranks' numbers, and broadcasts from rank 0, over peer memory (`peer_rows`).

    gather    x (R, C) of each rank -> (R, ranks * C), the ranks' columns side by side
    share     x gets rank 0's values; all ranks send, because a turn waits for all ranks

A program exchanges a piece of a row of x, as wide as a row of the buffers. A NaN with all bits set
is the sentinel, so it is sent as another NaN. An integer with all bits set must not be exchanged.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.collectives.peer_rows import (
    PeerRows,
    end_turn,
    ints_of,
    mark_again,
    row_of_turn,
    send,
    take,
    wait,
)
from kernels.launch.dependent_launch import dependent_launch, launch_dependents_and_wait
from kernels.launch.rounding import cdiv, next_power_of_2
from kernels.launch.row_warps import row_warps


def reference(ranks: Tensor) -> Tensor:
    """Join the columns of all ranks: (ranks, R, C) -> (R, ranks * C). Plain PyTorch."""
    return ranks.transpose(0, 1).flatten(1)


@triton.jit
def _peer_gather_kernel(
    x: tl.tensor,
    gathered: tl.tensor,
    own: tl.tensor,
    addresses: tl.tensor,
    turns: tl.tensor,
    num_rows: tl.tensor,
    columns: tl.tensor,
    SHARE: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    launch_dependents_and_wait(DEPENDENT)
    piece, x_row = tl.program_id(0), tl.program_id(1)
    row = x_row * tl.num_programs(0) + piece
    column = tl.arange(0, PADDED)[None, :]
    inside = (column < WIDTH) & (piece * WIDTH + column < columns)
    turn = tl.load(turns + row)
    place = row_of_turn(turn, row, num_rows, RANKS * WIDTH)
    mine = tl.load(x + x_row * columns + piece * WIDTH + column, mask=inside, other=0)
    send(mine, inside, column, place, own, addresses, RANK, RANKS, WIDTH)
    mark_again(turn, row, column, own, num_rows, RANKS, WIDTH)
    for peer in tl.static_range(RANKS):
        source = own + place + peer * WIDTH + column
        if SHARE:
            if peer == 0 and RANK > 0:
                first = take(source, inside, turn)
                tl.store(gathered + piece * WIDTH + column, first, mask=inside)
            elif peer != RANK:
                wait(source, inside, turn)
        else:
            found = mine if peer == RANK else take(source, inside, turn)
            target = gathered + (x_row * RANKS + peer) * columns + piece * WIDTH + column
            tl.store(target, found, mask=inside)
    end_turn(turn, row, turns)


def can_gather(x: Tensor, peers: PeerRows) -> bool:
    """Return whether `gather` supports x (R, C)."""
    rows, columns = x.shape
    is_alike = ints_of(x.dtype) == peers.own.dtype
    return is_alike and rows > 0 and 0 < cdiv(columns, peers.columns) <= peers.num_rows


def can_share(x: Tensor, peers: PeerRows) -> bool:
    """Return whether `share` supports x. The answer is the same on all ranks."""
    width = peers.columns * peers.own.itemsize // 4
    is_known = x.dtype == torch.int64 and peers.columns % 2 == 0
    return is_known and 0 < cdiv(2 * x.numel(), width) <= peers.num_rows


def gather(x: Tensor, peers: PeerRows) -> Tensor:
    """Join the columns of all ranks: x (R, C) of each rank -> (R, ranks * C). See `can_gather`."""
    rows, columns = x.shape
    gathered = x.new_empty((rows, peers.num_ranks * columns))
    source, target = (one.view(peers.own.dtype) for one in (x.contiguous(), gathered))
    at_once = peers.num_rows // cdiv(columns, peers.columns)
    for start in range(0, rows, at_once):
        some = slice(start, start + at_once)
        _launch(source[some], target[some], peers.own, peers, share=False)
    return gathered


def share(x: Tensor, peers: PeerRows) -> None:
    """Overwrite x with rank 0's values, int64 from 0 to 2^32 - 2.

    `x` must be contiguous on all ranks except rank 0.
    """
    halves = x.reshape(1, -1).view(torch.int32)
    _launch(halves, halves, peers.own.view(torch.int32), peers, share=True)


def _launch(x: Tensor, gathered: Tensor, own: Tensor, peers: PeerRows, *, share: bool) -> None:
    width, (rows, columns) = own.shape[3], x.shape
    padded = next_power_of_2(width)
    _peer_gather_kernel[(cdiv(columns, width), rows)](
        x,
        gathered,
        own,
        peers.addresses,
        peers.turns,
        peers.num_rows,
        columns,
        SHARE=share,
        RANK=peers.rank,
        RANKS=peers.num_ranks,
        WIDTH=width,
        PADDED=padded,
        num_warps=row_warps(padded),
        **dependent_launch(x.device),
    )
