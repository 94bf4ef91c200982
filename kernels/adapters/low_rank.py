"""Adapters' products added to the model's: product[t] += B[slot of t] (A[slot of t] x[t]).

Tokens are ordered by slot once a step (`kernels.experts.order`), in tiles of one slot each; how
many tiles there may be follows from the sizes alone, so a captured graph serves any mix of slots.
One kernel does both products: first A, for all parts of the matrix at once, then B, part by part.
Tiles of slot 0, without an adapter, do nothing. As in Punica (Chen et al., 2023) and S-LoRA (Sheng
et al., 2023), the model's own product is computed once for all tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from kernels.adapters.slots import SlotMatrices, TokenSlots
from kernels.experts import order
from kernels.launch.rounding import cdiv

FEW_TOKENS = 16  # tokens of a tile of few tokens, and of many
MANY_TOKENS = 64
_FEATURES = 64
_DEPTH = 64


def reference_slots(slots: Tensor, num_slots: int) -> TokenSlots:
    """Return tokens' slots (T,) int32 as `reference` reads them."""
    return TokenSlots(slots, num_slots)


def launch_slots(slots: Tensor, num_slots: int) -> TokenSlots:
    """Order tokens by slot (T,) int32 on the device, for `launch`."""
    rows = FEW_TOKENS if slots.numel() <= FEW_TOKENS * num_slots else MANY_TOKENS
    return TokenSlots(slots, num_slots, order.launch(slots, num_slots, rows))


def reference(product: Tensor, x: Tensor, matrices: SlotMatrices, slots: TokenSlots) -> Tensor:
    """Add to a product (T, N), or to the first of its parts (S, T, N), in place; return it.

    x (T, K). Plain PyTorch, float32 inside; waits for the device.
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
def _low_rank_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    starts: tl.tensor,
    tokens_of: tl.tensor,
    slots: tl.tensor,
    num_tokens: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    IS_B: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """Multiply a tile of tokens by FEATURES rows of its slot's matrix (N, K).

    IS_B: each part of the rows (`starts`) reads K columns of x of its own, and adds to `out`.
    """
    tile, part = tl.program_id(1), tl.program_id(2)
    slot = tl.load(slots + tile).to(tl.int64)
    if slot <= 0:
        return
    first, end, shift = tl.program_id(0) * FEATURES, N, 0
    if IS_B:
        first += tl.load(starts + part)
        end = tl.load(starts + part + 1)
        shift = part * K
    if first >= end:
        return
    token = tl.load(tokens_of + tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = token < num_tokens
    feature, column = first + tl.arange(0, FEATURES), tl.arange(0, DEPTH)
    inside = feature < end
    inputs = x + token[:, None] * x_stride + shift + column[None, :]
    own = weight + slot * N * K + feature[:, None].to(tl.int64) * K + column[None, :]
    acc = tl.zeros([ROWS, FEATURES], tl.float32)
    for start in range(0, K, DEPTH):
        within = start + column < K
        a = tl.load(inputs + start, mask=real[:, None] & within[None, :], other=0.0)
        b = tl.load(own + start, mask=inside[:, None] & within[None, :], other=0.0)
        acc = tl.dot(a.to(b.dtype), tl.trans(b), acc, input_precision="ieee")
    kept = real[:, None] & inside[None, :]
    goal = out + token[:, None] * out_stride + feature[None, :]
    if IS_B:
        acc += tl.load(goal, mask=kept, other=0.0).to(tl.float32)
    tl.store(goal, acc.to(out.dtype.element_ty), mask=kept)


def launch(product: Tensor, x: Tensor, matrices: SlotMatrices, slots: TokenSlots) -> Tensor:
    """Compute `reference` on the device, for x and a product with contiguous columns."""
    own = product if product.dim() == 2 else product[0]
    if not len(x):
        return product
    a, b, parts = matrices.a, matrices.b, len(matrices.rows)
    low = torch.empty((len(x), a.shape[1]), dtype=a.dtype, device=x.device)
    _launch(x, a, low, matrices, slots, parts=1, widest=a.shape[1], is_b=False)
    _launch(low, b, own, matrices, slots, parts=parts, widest=max(matrices.rows), is_b=True)
    return product


def _launch(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    matrices: SlotMatrices,
    slots: TokenSlots,
    *,
    parts: int,
    widest: int,
    is_b: bool,
) -> None:
    tiles = slots.tiles
    assert tiles is not None, "tokens are ordered by `launch_slots`"
    num_tiles, rows = tiles.pairs.shape
    features = _FEATURES if is_b else min(_FEATURES, matrices.rank)
    _low_rank_kernel[(cdiv(widest, features), num_tiles, parts)](
        x,
        weight,
        out,
        matrices.starts,
        tiles.pairs,
        tiles.experts,
        slots.slots.numel(),
        x.stride(0),
        out.stride(0),
        N=weight.shape[1],
        K=weight.shape[2],
        IS_B=is_b,
        ROWS=rows,
        FEATURES=features,
        DEPTH=min(_DEPTH, matrices.rank) if is_b else _DEPTH,
    )
