"""The experts' GEMMs: each row is multiplied by its expert's matrix, tile by tile.

    gated    out[p] = gate(x[token of p] @ [gate | up].T)       x (T, H) -> (T k, I)
             out[p] = relu(x[token of p] @ up.T)^2              if there is no gate
    down     out[j, t] = weight * (h[t k + j] @ down.T)         h (T k, I) -> (k, T, H)

p = t k + j is the pair of token t and its j-th expert. The k products of a token are written to
separate parts, and the reader adds them in order (`split_k`, `add_experts`). The products are
float32 for few tokens, and of the model's dtype for many. Nothing is added with atomics, and each
result is written once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.experts import four_bit_products
from kernels.experts.four_bit_matrices import FourBitMatrix
from kernels.experts.matrices import AnyMatrix
from kernels.experts.order import PairTiles
from kernels.experts.product_kernel import product_kernel
from kernels.experts.route import Routed
from kernels.experts.tiles import ExpertTile
from kernels.launch.dependent_launch import dependent_launch
from kernels.launch.rounding import cdiv
from kernels.linear.fp8_rows import Fp8Rows
from kernels.norms import gate_mul
from kernels.norms.gate import SILU, Gate

MAX_FLOAT_TOKENS = 64  # maximum number of tokens for which the outputs of `down` are float32
_SCALES = {"none": 0, "channel": 1, "block": 2}
_FP8_DEPTH = 128  # columns of a tile, which share a scale if scales are by block


def gated_reference(
    x: Tensor | Fp8Rows, routed: Routed, gate_up: AnyMatrix, gate: Gate, dtype: torch.dtype
) -> Tensor:
    """Compute the gated product of x (T, H) -> (T k, I) of `dtype`. Plain PyTorch in float32."""
    wide = _written_out(x).repeat_interleave(routed.experts.shape[1], 0)
    both = _by_expert(wide, routed, gate_up)
    return gate_mul.reference(both, gate).to(dtype)


def down_reference(
    hidden: Tensor | Fp8Rows, routed: Routed, down: AnyMatrix, dtype: torch.dtype
) -> Tensor:
    """Multiply hidden (T k, I) by `down` and the weights -> (k, T, H) of `dtype`. Plain PyTorch."""
    products = _by_expert(_written_out(hidden), routed, down)
    weighted = products * routed.weights.flatten()[:, None]
    return weighted.view(*routed.experts.shape, products.shape[1]).transpose(0, 1).to(dtype)


def _written_out(x: Tensor | Fp8Rows) -> Tensor:
    return x.dequantised() if isinstance(x, Fp8Rows) else x.float()


def _by_expert(x: Tensor, routed: Routed, matrix: AnyMatrix) -> Tensor:
    """Multiply x (P, K) float32 by the matrix of each row's expert -> (P, N) float32."""
    owners = routed.experts.flatten()
    out = x.new_empty((x.shape[0], matrix.rows))
    for expert in owners.unique().tolist():
        rows = (owners == expert).nonzero().flatten()
        bias = None if matrix.bias is None else matrix.bias[expert].float()
        out[rows] = F.linear(x[rows], matrix.dequantised(expert), bias)
    return out


def gated_launch(
    x: Tensor | Fp8Rows,
    routed: Routed,
    tiles: PairTiles,
    tile: ExpertTile,
    gate_up: AnyMatrix,
    gate: Gate,
    dtype: torch.dtype,
) -> Tensor:
    """Compute `gated_reference` on the device. Rows of x must be contiguous."""
    pairs, size = routed.experts.numel(), gate_up.rows // gate.factors
    out = torch.empty((pairs, size), dtype=dtype, device=tiles.pairs.device)
    _launch(x, routed, tiles, tile, gate_up, out, size, gate)
    return out


def down_launch(
    hidden: Tensor | Fp8Rows,
    routed: Routed,
    tiles: PairTiles,
    tile: ExpertTile,
    down: AnyMatrix,
    dtype: torch.dtype,
) -> Tensor:
    """Compute `down_reference` on the device."""
    (tokens, top_k), size = routed.experts.shape, down.rows
    out = torch.empty((top_k, tokens, size), dtype=dtype, device=tiles.pairs.device)
    _launch(hidden, routed, tiles, tile, down, out, size, None)
    return out


def _launch(
    x: Tensor | Fp8Rows,
    routed: Routed,
    tiles: PairTiles,
    tile: ExpertTile,
    matrix: AnyMatrix,
    out: Tensor,
    size: int,
    gate: Gate | None,
) -> None:
    tokens, top_k = routed.experts.shape
    if not tokens:
        return
    if isinstance(matrix, FourBitMatrix):
        assert isinstance(x, Tensor), "inputs are plain"
        four_bit_products.launch(x, routed, tiles, tile, matrix, out, gate)
        return
    values, x_scales = (x.values, x.scales) if isinstance(x, Fp8Rows) else (x, x)
    depth = tile.depth // values.element_size()
    how = SILU if gate is None else gate
    product_kernel[(cdiv(size, tile.features), tiles.experts.shape[0])](
        values,
        x_scales,
        matrix.values,
        matrix.values if matrix.scales is None else matrix.scales,
        matrix.values if matrix.bias is None else matrix.bias,
        routed.weights,
        out,
        tiles.pairs,
        tiles.experts,
        tokens,
        float(how.limit or 0.0),
        float(how.alpha),
        K=values.shape[1],
        N=size,
        TOP_K=top_k,
        GATED=gate is not None,
        FACTORS=1 if gate is None else gate.factors,
        ACT=how.act,
        LIMITED=how.limit is not None,
        SCALES=_SCALES[matrix.kind],
        HAS_BIAS=matrix.bias is not None,
        ROWS=tile.rows,
        FEATURES=tile.features,
        DEPTH=_FP8_DEPTH if matrix.scales is not None else depth,
        WEIGHT_FIRST=tile.weight_first,
        UPCAST=not values.is_cuda and matrix.scales is not None,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **dependent_launch(values.device),
    )
