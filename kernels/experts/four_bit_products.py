"""The launch of the GEMMs of four-bit experts, for any number of tokens.

With few tokens, the time is that of reading the matrices, which have a quarter of the bytes of
16-bit matrices. With many tokens, the time is that of arithmetic. A number is unpacked once per 128
(token, expert) pairs. Unpacking takes about 3 instructions per 128 multiplications, and on Hopper
both run at the same time. Dequantising a layer's experts to memory would instead move 4.5 bytes per
number in each step, and need scratch memory.
"""

from __future__ import annotations

from torch import Tensor

from kernels.experts import hopper_four_bit
from kernels.experts.four_bit_kernel import product_kernel
from kernels.experts.four_bit_matrices import FourBitMatrix
from kernels.experts.four_bit_numbers import unpacking_of
from kernels.experts.order import PairTiles
from kernels.experts.route import Routed
from kernels.experts.tiles import ExpertTile
from kernels.launch.dependent_launch import dependent_launch
from kernels.launch.rounding import cdiv
from kernels.norms.gate import SILU, Gate


def launch(
    x: Tensor,
    routed: Routed,
    tiles: PairTiles,
    tile: ExpertTile,
    matrix: FourBitMatrix,
    out: Tensor,
    gate: Gate | None,
) -> None:
    """Multiply x (rows, K) by `matrix` into `out`, like `products`."""
    tokens, top_k = routed.experts.shape
    factors = 1 if gate is None else gate.factors
    size = matrix.rows // factors
    how = SILU if gate is None else gate
    grid = cdiv(size, tile.features), tiles.experts.shape[0]
    given = (
        x,
        matrix.values,
        matrix.scales,
        matrix.scales if matrix.bias is None else matrix.bias,
        routed.weights,
        out,
        tiles.pairs,
        tiles.experts,
        tokens,
        float(how.limit or 0.0),
        float(how.alpha),
    )
    sizes = {
        "K": matrix.columns,
        "N": size,
        "TOP_K": top_k,
        "GATED": gate is not None,
        "FACTORS": factors,
        "ACT": how.act,
        "LIMITED": how.limit is not None,
        "MXFP4": matrix.kind == "mxfp4",
        "GROUP": matrix.group,
        "HAS_BIAS": matrix.bias is not None,
        "ROWS": tile.rows,
        "STAGES": tile.stages,
        "num_warps": tile.warps,
    }
    if tile.is_overlapped:
        hopper_four_bit.product_kernel[grid](*given, **sizes)
        return
    product_kernel[grid](
        *given,
        **sizes,
        UNPACK=unpacking_of(matrix),
        FEATURES=tile.features,
        num_stages=tile.stages,
        **dependent_launch(x.device),
    )
