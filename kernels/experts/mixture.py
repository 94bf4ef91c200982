"""The computation of a mixture of experts, after the experts of each token were chosen.

    order -> gate(x @ gate_up.T) -> h @ down.T, times the weight -> sum over a token's experts

If the matrices are in fp8, the inputs of both products are quantised, for any number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.experts import add_experts, hopper_four_bit, order, products
from kernels.experts.four_bit_matrices import FourBitMatrix
from kernels.experts.matrices import AnyMatrix, Scales
from kernels.experts.route import Routed
from kernels.experts.tiles import MixtureTiles, four_bit_tiles_for, tile_for
from kernels.linear import fp8_rows
from kernels.linear.fp8_rows import Scaling
from kernels.norms.gate import Gate

MixtureOp = Callable[[Tensor, Routed, AnyMatrix, AnyMatrix, Gate], Tensor]
"""x (T, H), each token's experts, gate_up, down -> (T, H), complete or in parts (`split_k`)."""


def reference(x: Tensor, routed: Routed, gate_up: AnyMatrix, down: AnyMatrix, gate: Gate) -> Tensor:
    """Compute x (T, H) -> (T, H) of the same dtype.

    Plain PyTorch. Sums are in float32, in order.
    """
    by = scaling_of(gate_up)
    inputs = x if by is None else fp8_rows.reference(x, by)
    hidden = products.gated_reference(inputs, routed, gate_up, gate, x.dtype)
    inner = hidden if by is None else fp8_rows.reference(hidden, by)
    parts = products.down_reference(inner, routed, down, torch.float32)
    return add_experts.reference(parts).to(x.dtype)


def launch(x: Tensor, routed: Routed, gate_up: AnyMatrix, down: AnyMatrix, gate: Gate) -> Tensor:
    """Compute `reference` on the device. For few tokens, return parts (k, T, H) float32."""
    tokens, by = x.shape[0], scaling_of(gate_up)
    of = tiles_of(gate_up, routed.experts.numel())
    tiles = order.launch(routed.experts, gate_up.num_experts, of.rows)
    inputs = x if by is None else fp8_rows.launch(x, by)
    inner_tile = of.inner(gate.factors)
    hidden = products.gated_launch(inputs, routed, tiles, inner_tile, gate_up, gate, x.dtype)
    inner = hidden if by is None else fp8_rows.launch(hidden, by)
    if tokens <= products.MAX_FLOAT_TOKENS:
        return products.down_launch(inner, routed, tiles, of.down, down, torch.float32)
    parts = products.down_launch(inner, routed, tiles, of.down, down, x.dtype)
    return add_experts.launch(parts)


def tiles_of(matrix: AnyMatrix, pairs: int) -> MixtureTiles:
    """Choose the tile sizes for these matrices and `pairs` (token, expert) pairs."""
    if isinstance(matrix, FourBitMatrix):
        return four_bit_tiles_for(
            pairs,
            matrix.num_experts,
            is_float32=matrix.dtype == torch.float32,
            can_overlap=hopper_four_bit.serves(matrix),
        )
    tile = tile_for(pairs, matrix.num_experts)
    return MixtureTiles(tile, tile)


def scaling_of(matrix: AnyMatrix) -> Scaling | None:
    """Return how to quantise the inputs of matrices with these scales, or None."""
    if isinstance(matrix, FourBitMatrix):
        return None
    found: dict[Scales, Scaling | None] = {"none": None, "channel": "token", "block": "group"}
    return found[matrix.kind]
