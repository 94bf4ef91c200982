"""The device code that all expert GEMMs share: a tile's pairs, bias and output rows.

Pair p = t * k + j is token t with its j-th expert. The gated product reads row t and writes row p.
The product with `down` reads row p and writes row t of part j.

Elsewhere: the matrices and the products (`product_kernel`, `four_bit_kernel`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.norms.gate_mul import gated


@triton.jit
def rows_of_tile(
    pairs: tl.tensor,
    tile: tl.tensor,
    tokens: tl.tensor,
    TOP_K: tl.constexpr,
    GATED: tl.constexpr,
    ROWS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Load a tile's pairs, flags for existing pairs, and the rows that they read, all (ROWS,)."""
    pair = tl.load(pairs + tile * ROWS + tl.arange(0, ROWS))
    real = pair < tokens * TOP_K
    row = (pair // TOP_K if GATED else pair).to(tl.int64)
    return pair, real, row


@triton.jit
def with_bias(
    acc: tl.tensor,
    bias: tl.tensor,
    feature: tl.tensor,
    inside: tl.tensor,
    HAS_BIAS: tl.constexpr,
    WEIGHT_FIRST: tl.constexpr,
) -> tl.tensor:
    """Add the bias of the features `feature` to the sum."""
    if HAS_BIAS:
        shift = tl.load(bias + feature, mask=inside, other=0.0).to(tl.float32)
        acc += shift[:, None] if WEIGHT_FIRST else shift[None, :]
    return acc


@triton.jit
def store_products(
    acc: tl.tensor,
    up: tl.tensor,
    routing: tl.tensor,
    out: tl.tensor,
    pair: tl.tensor,
    real: tl.tensor,
    feature: tl.tensor,
    inside: tl.tensor,
    tokens: tl.tensor,
    limit: tl.tensor,
    alpha: tl.tensor,
    N: tl.constexpr,
    TOP_K: tl.constexpr,
    GATED: tl.constexpr,
    ACT: tl.constexpr,
    LIMITED: tl.constexpr,
    WEIGHT_FIRST: tl.constexpr,
) -> None:
    """Apply the gate to `acc` and `up`, or multiply `acc` by the pairs' weights. Store it."""
    if GATED:
        acc = gated(acc, up, limit, alpha, ACT, LIMITED)
        goal = pair.to(tl.int64) * N
    else:
        times = tl.load(routing + pair, mask=real, other=0.0)
        acc *= times[None, :] if WEIGHT_FIRST else times[:, None]
        goal = ((pair % TOP_K).to(tl.int64) * tokens + pair // TOP_K) * N
    result = acc.to(out.dtype.element_ty)
    if WEIGHT_FIRST:
        kept = inside[:, None] & real[None, :]
        tl.store(out + goal[None, :] + feature[:, None], result, mask=kept)
    else:
        kept = real[:, None] & inside[None, :]
        tl.store(out + goal[:, None] + feature[None, :], result, mask=kept)
