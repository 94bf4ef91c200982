"""The adapters' products, added to the model's: product[t] += B[slot of t] (A[slot of t] x[t]).

Tokens are ordered by slot once for each step (`kernels.experts.order`), in tiles that have one slot
each. The maximum number of tiles depends only on sizes, so a captured graph works for any mix of
slots. A first kernel multiplies slices of A's columns. A second kernel adds the slices' products,
and multiplies the sum by B, part by part. Programs of slot 0, which has no adapter, do nothing. As
in Punica (Chen et al., 2023) and S-LoRA (Sheng et al., 2023), the model's product is computed once
for all tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from kernels.adapters.slots import SlotMatrices, TokenSlots
from kernels.experts import order
from kernels.launch.dependent_launch import dependent_launch, launch_dependents_and_wait
from kernels.launch.rounding import cdiv, next_power_of_2

FEW_TOKENS = 16  # tokens of a tile; in a step with many tokens, MANY_TOKENS
MANY_TOKENS = 64
_SHRUNK = 64  # number of rows of A that a program multiplies
_EXPANDED = 128  # number of rows of B that a program multiplies
# Number of tiles up to which too few programs would run if each read all columns of A.
FEW_TILES = 64
_FEW_COLUMNS = 512  # number of columns of A that a program reads; with many tiles, _MANY_COLUMNS
_MANY_COLUMNS = 4096
_DEPTH = 128


def reference_slots(slots: Tensor, num_slots: int) -> TokenSlots:
    """Wrap the tokens' slots (T,) int32 in the form that `reference` reads."""
    return TokenSlots(slots, num_slots)


def launch_slots(slots: Tensor, num_slots: int) -> TokenSlots:
    """Order tokens by their slots (T,) int32 on the device, in the form that `launch` reads."""
    rows = rows_of_tile(slots.numel(), num_slots)
    return TokenSlots(slots, num_slots, order.launch(slots, num_slots, rows))


def rows_of_tile(tokens: int, num_slots: int) -> int:
    """Choose the number of tokens of a tile."""
    return FEW_TOKENS if tokens <= FEW_TOKENS * num_slots else MANY_TOKENS


def reference(product: Tensor, x: Tensor, matrices: SlotMatrices, slots: TokenSlots) -> Tensor:
    """Add the adapters' products in place to `product`: to (T, N), or to the first of its parts.

    Return `product`. x is (T, K). Parts are (S, T, N). Plain PyTorch in float32. Waits for the
    device.
    """
    own = product if product.dim() == 2 else product[0]
    for slot in slots.slots.unique().tolist():
        if slot:
            tokens = (slots.slots == slot).nonzero().flatten()
            low = F.linear(x[tokens].float(), matrices.a[slot].float())
            parts = low.split(matrices.rank, dim=1)
            rows = matrices.b[slot].float().split(matrices.rows)
            more = torch.cat([F.linear(*both) for both in zip(parts, rows, strict=True)], dim=1)
            own[tokens] = (own[tokens].float() + more).to(own.dtype)
    return product


@triton.jit(do_not_specialize=["num_tokens"])
def _shrink_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    tokens_of: tl.tensor,
    slots: tl.tensor,
    num_tokens: tl.tensor,
    x_stride: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    DEPTH: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Multiply COLUMNS columns of a tile's tokens by FEATURES rows of the slot's A (N, K).

    The result goes to out (slices, tiles, ROWS, N) float32.
    """
    launch_dependents_and_wait(DEPENDENT)
    tile, part = tl.program_id(1), tl.program_id(2)
    slot = tl.load(slots + tile).to(tl.int64)
    if slot <= 0:
        return
    row = tl.arange(0, ROWS)
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    token = tl.load(tokens_of + tile * ROWS + row).to(tl.int64)
    real, inside = token < num_tokens, feature < N
    column = part * COLUMNS + tl.arange(0, DEPTH)
    inputs = x + token[:, None] * x_stride + column[None, :]
    own = weight + slot * N * K + feature[:, None].to(tl.int64) * K + column[None, :]
    acc = tl.zeros([ROWS, FEATURES], tl.float32)
    for start in range(0, COLUMNS, DEPTH):
        within = start + column < K
        a = tl.load(inputs + start, mask=real[:, None] & within[None, :], other=0.0)
        b = tl.load(own + start, mask=inside[:, None] & within[None, :], other=0.0)
        acc = tl.dot(a.to(b.dtype), tl.trans(b), acc, input_precision="ieee")
    goal = (part * tl.num_programs(1) + tile) * ROWS + row
    tl.store(out + goal[:, None] * N + feature[None, :], acc, mask=inside[None, :])


@triton.jit(do_not_specialize=["num_tokens"])
def _expand_kernel(
    low: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    starts: tl.tensor,
    tokens_of: tl.tensor,
    slots: tl.tensor,
    num_tokens: tl.tensor,
    out_stride: tl.tensor,
    N: tl.constexpr,
    R: tl.constexpr,
    PARTS: tl.constexpr,
    SLICES: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Sum the slices, multiply by FEATURES rows of the slot's B (N, R), and add to the outputs."""
    launch_dependents_and_wait(DEPENDENT)
    tile, part = tl.program_id(1), tl.program_id(2)
    slot = tl.load(slots + tile).to(tl.int64)
    if slot <= 0:
        return
    feature = tl.load(starts + part) + tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    inside = feature < tl.load(starts + part + 1)
    row, column = tl.arange(0, ROWS), tl.arange(0, R)
    token = tl.load(tokens_of + tile * ROWS + row).to(tl.int64)
    b = tl.load(
        weight + slot * N * R + feature[:, None].to(tl.int64) * R + column[None, :],
        mask=inside[:, None],
        other=0.0,
    )
    inputs = low + (tile * ROWS + row)[:, None] * (PARTS * R) + part * R + column[None, :]
    a = tl.zeros([ROWS, R], tl.float32)
    for one in range(SLICES):
        a += tl.load(inputs + one * (tl.num_programs(1) * ROWS * PARTS * R))
    kept = (token < num_tokens)[:, None] & inside[None, :]
    goal = out + token[:, None] * out_stride + feature[None, :]
    acc = tl.load(goal, mask=kept, other=0.0).to(tl.float32)
    acc = tl.dot(a.to(b.dtype), tl.trans(b), acc, input_precision="ieee")
    tl.store(goal, acc.to(out.dtype.element_ty), mask=kept)


def launch(product: Tensor, x: Tensor, matrices: SlotMatrices, slots: TokenSlots) -> Tensor:
    """Compute `reference` on the device. Columns of x and `product` must be contiguous."""
    own = product if product.dim() == 2 else product[0]
    if not len(x):
        return product
    tiles = slots.tiles
    assert tiles is not None, "tokens are ordered by `launch_slots`"
    (num_tiles, rows), (_, all_ranks, size_in) = tiles.pairs.shape, matrices.a.shape
    columns = _FEW_COLUMNS if num_tiles <= FEW_TILES else _MANY_COLUMNS
    slices, parts = cdiv(size_in, columns), len(matrices.rows)
    low = torch.empty((slices, num_tiles, rows, all_ranks), device=x.device)
    shrunk, early = min(_SHRUNK, next_power_of_2(all_ranks)), dependent_launch(x.device)
    _shrink_kernel[(cdiv(all_ranks, shrunk), num_tiles, slices)](
        x,
        matrices.a,
        low,
        tiles.pairs,
        tiles.experts,
        len(x),
        x.stride(0),
        N=all_ranks,
        K=size_in,
        COLUMNS=columns,
        ROWS=rows,
        FEATURES=shrunk,
        DEPTH=_DEPTH,
        **early,
    )
    _expand_kernel[(cdiv(max(matrices.rows), _EXPANDED), num_tiles, parts)](
        low,
        matrices.b,
        own,
        matrices.starts,
        tiles.pairs,
        tiles.experts,
        len(x),
        own.stride(0),
        N=matrices.b.shape[1],
        R=matrices.rank,
        PARTS=parts,
        SLICES=slices,
        ROWS=rows,
        FEATURES=_EXPANDED,
        **early,
    )
    return product
