"""A residual add and RMS norm in one kernel: r' = x + residual, y = rms_norm(r', weight, eps).

The sum is rounded to the dtype of the residual before the norm, so the result equals that of two
separate kernels. If an fp8 product reads y next, this kernel rounds y to the same dtype and then
quantises y. If x is one rank's part of a product, this kernel exchanges parts with the other ranks
(`peer_rows`). All parts are added in the order of ranks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.collectives.peer_rows import PeerProduct, PeerRows, summed_over_ranks
from kernels.launch.dependent_launch import dependent_launch, launch_dependents, wait_for_previous
from kernels.launch.rounding import next_power_of_2
from kernels.launch.row_warps import row_warps
from kernels.limits import check_hidden_size
from kernels.linear import fp8_rows
from kernels.linear import split_k as parts
from kernels.linear.fp8_rows import Fp8Rows, Scaling, store_scaled
from kernels.linear.split_k import load_summed
from kernels.norms import rms_norm
from kernels.norms.rms_norm import scaled_rows


def reference(
    x: Tensor | PeerProduct, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Add x and residual (T, H), and norm the sum by weight (H,) -> (normed, sum), (T, H).

    The norm is that of `rms_norm`. x may be parts (S, T, H) float32, or gathered parts of ranks in
    the model's dtype. x and residual are not changed. Raises UnsupportedShape.
    """
    assert isinstance(x, Tensor), "what is exchanged in a kernel is gathered for the reference"
    total = parts.whole(x, residual.dtype) + residual
    return rms_norm.reference(total, weight, eps), total


def reference_fp8(
    x: Tensor | PeerProduct, residual: Tensor, weight: Tensor, eps: float, by: Scaling
) -> tuple[Fp8Rows, Tensor]:
    """Compute `reference`, and quantise the normed rows to fp8."""
    normed, total = reference(x, residual, weight, eps)
    return fp8_rows.reference(normed, by), total


@triton.jit
def _add_rms_norm_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    normed: tl.tensor,
    scales: tl.tensor,
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
    TWO_SHOT: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    H: tl.constexpr,
    H_PADDED: tl.constexpr,
    FP8: tl.constexpr,
    GROUP: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    launch_dependents(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, H_PADDED)[None, :]
    inside = column < H
    scale = tl.load(weight + column, mask=inside, other=0.0)  # no kernel writes the weight
    wait_for_previous(DEPENDENT)
    right = tl.load(residual + row * residual_stride + column, mask=inside, other=0.0)
    left = load_summed(x + row * x_stride + column, part_stride, inside, PARTS).to(right.dtype)
    if RANKS > 1:
        added = summed_over_ranks(
            left, row, column, own, addresses, turns, num_rows, TWO_SHOT, RANK, RANKS, H
        )
        left = added.to(right.dtype)
    summed = (left.to(tl.float32) + right.to(tl.float32)).to(right.dtype)
    tl.store(total + row * H + column, summed, mask=inside)
    result = scaled_rows(summed.to(tl.float32), scale, eps, H).to(summed.dtype)
    if FP8:
        wide = tl.where(inside, result.to(tl.float32), 0.0)
        store_scaled(wide, normed, scales, row, 0, H, H_PADDED, GROUP)
    else:
        tl.store(normed + row * H + column, result, mask=inside)


def launch(
    x: Tensor | PeerProduct, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Compute `reference` on the device. Rows must be contiguous, with any row stride.

    If x is a PeerProduct, the ranks exchange their parts, and the result is `reference` of all
    parts (ranks, T, H).
    """
    normed = torch.empty(residual.shape, dtype=residual.dtype, device=residual.device)
    return normed, _launch(x, residual, weight, eps, normed, normed, None)


def launch_fp8(
    x: Tensor | PeerProduct, residual: Tensor, weight: Tensor, eps: float, by: Scaling
) -> tuple[Fp8Rows, Tensor]:
    """Compute `reference_fp8` on the device. The inputs are those of `launch`."""
    tokens, hidden = residual.shape
    normed = fp8_rows.empty_rows(tokens, hidden, by, residual.device)
    return normed, _launch(x, residual, weight, eps, normed.values, normed.scales, by)


def _launch(
    x: Tensor | PeerProduct,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    normed: Tensor,
    scales: Tensor,
    by: Scaling | None,
) -> Tensor:
    """Write `normed`, and its scales if `by` is given, and return the sum."""
    tokens, hidden = residual.shape
    check_hidden_size(hidden)
    total = torch.empty((tokens, hidden), dtype=residual.dtype, device=residual.device)
    part, peers = (x.part, x.peers) if isinstance(x, PeerProduct) else (x, None)
    if peers is None or tokens <= peers.num_rows:
        if tokens:
            _launch_rows(part, residual, weight, eps, (normed, scales, total), by, peers)
        return total
    for start in range(0, tokens, peers.num_rows):
        rows = slice(start, start + peers.num_rows)
        outputs = normed[rows], scales[rows], total[rows]
        _launch_rows(part[..., rows, :], residual[rows], weight, eps, outputs, by, peers)
    return total


def _launch_rows(
    part: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    outputs: tuple[Tensor, Tensor, Tensor],
    by: Scaling | None,
    peers: PeerRows | None,
) -> None:
    """Write `outputs` (normed, scales, sum). The rows must fit into one exchange of ranks."""
    tokens, hidden = residual.shape
    padded = next_power_of_2(hidden)
    num_parts, *strides = parts.layout(part)
    _add_rms_norm_kernel[(tokens,)](
        part,
        residual,
        weight,
        *outputs,
        *_buffers(peers, residual),
        eps,
        *strides,
        residual.stride(0),
        PARTS=num_parts,
        TWO_SHOT=peers is not None and peers.is_two_shot(tokens),
        RANK=0 if peers is None else peers.rank,
        RANKS=1 if peers is None else peers.num_ranks,
        H=hidden,
        H_PADDED=padded,
        FP8=by is not None,
        GROUP=0 if by is None else fp8_rows.group_of(by),
        num_warps=row_warps(padded),
        **dependent_launch(residual.device),
    )


def _buffers(peers: PeerRows | None, unread: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return the kernel's arguments for the exchange between ranks.

    Without peers the kernel ignores these arguments.
    """
    if peers is None:
        return unread, unread, unread, 0
    return peers.own, peers.addresses, peers.turns, peers.num_rows
