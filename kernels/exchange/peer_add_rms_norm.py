"""The ranks' products exchanged, added up, added to the residual and normed, in one kernel.

Is `add_rms_norm` of what the ranks' products gathered would be, bit for bit: a program has a row,
sends it to all ranks (`peer_rows`), waits for theirs, and goes on as that kernel does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.exchange.peer_rows import PeerRows, arrived, start_of, without_mark
from kernels.launch.dependent_launch import dependent_launch, launch_dependents_and_wait
from kernels.launch.rounding import next_power_of_2
from kernels.launch.row_warps import row_warps
from kernels.limits import check_hidden_size
from kernels.linear import split_k as parts
from kernels.linear.split_k import load_summed
from kernels.norms.rms_norm import scaled_rows


@triton.jit
def _kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    normed: tl.tensor,
    total: tl.tensor,
    own: tl.tensor,
    addresses: tl.tensor,
    turns: tl.tensor,
    num_rows: tl.tensor,
    eps: tl.tensor,
    part_stride: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    PARTS: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    H: tl.constexpr,
    H_PADDED: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    launch_dependents_and_wait(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, H_PADDED)[None, :]
    inside = column < H
    turn = tl.load(turns + row)
    here = ((turn % 3) * num_rows + row) * (RANKS * H)
    mine = load_summed(x + row * x_stride + column, part_stride, inside, PARTS)
    mine = mine.to(total.dtype.element_ty)
    bits = without_mark(mine.to(own.dtype.element_ty, bitcast=True))
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            tl.store(start_of(addresses, own, peer, here + RANK * H) + column, bits, mask=inside)
    right = tl.load(residual + row * residual_stride + column, mask=inside, other=0.0)
    scale = tl.load(weight + column, mask=inside, other=0.0)
    marks = tl.full([1, H_PADDED], -1, own.dtype.element_ty)
    before = (((turn + 2) % 3) * num_rows + row) * (RANKS * H)
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            tl.store(own + before + peer * H + column, marks, mask=inside)
    left = mine
    for peer in tl.static_range(RANKS):
        if peer == RANK:
            part = mine
        else:
            part = arrived(own + here + peer * H + column, inside).to(mine.dtype, bitcast=True)
        if peer == 0:
            left = part
        else:
            left += part
    tl.store(turns + row, turn + 1)
    summed = (left.to(tl.float32) + right.to(tl.float32)).to(right.dtype)
    tl.store(total + row * H + column, summed, mask=inside)
    result = scaled_rows(summed.to(tl.float32), scale, eps, H).to(summed.dtype)
    tl.store(normed + row * H + column, result, mask=inside)


def launch(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, peers: PeerRows
) -> tuple[Tensor, Tensor]:
    """x (T, H) or in parts, of this rank, residual (T, H) -> (normed, new residual), both (T, H).

    All ranks call it with as many rows, at most as many as the buffers have.
    """
    tokens, hidden = residual.shape
    check_hidden_size(hidden)
    normed = torch.empty((tokens, hidden), dtype=residual.dtype, device=x.device)
    total = torch.empty_like(normed)
    padded = next_power_of_2(hidden)
    num_parts, *strides = parts.layout(x)
    _kernel[(tokens,)](
        x,
        residual,
        weight,
        normed,
        total,
        peers.own,
        peers.addresses,
        peers.turns,
        peers.own.shape[1],
        eps,
        *strides,
        residual.stride(0),
        PARTS=num_parts,
        RANK=peers.rank,
        RANKS=peers.num_ranks,
        H=hidden,
        H_PADDED=padded,
        num_warps=row_warps(padded),
        **dependent_launch(x.device),
    )
    return normed, total
