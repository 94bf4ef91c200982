"""The inverse of a unit lower triangular matrix in registers.

This module has only device code.

    I + L, L strictly lower, 64 x 64 = 4 x 4 blocks of 16 x 16

B is the diagonal blocks of I + L. Forward substitution inverts all of them in parallel. Then inv(B)
(I + L) = I + M, where M has only blocks below the diagonal. M^4 is therefore 0:

    inv(I + M) = I - M + M^2 - M^3 = (I - M) (I + M^2)

A series of powers of L itself would be inaccurate. If keys repeat, the powers grow like binomial
coefficients, and their sum has few exact digits.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def unit_inverse(lower: tl.tensor, SIZE: tl.constexpr, PRECISION: tl.constexpr) -> tl.tensor:
    """Invert I + `lower` (SIZE, SIZE) float32. SIZE is a multiple of 16 and at most 64."""
    BLOCKS: tl.constexpr = SIZE // 16
    block = tl.arange(0, BLOCKS)
    diagonal = block[:, None, None, None] == block[None, None, :, None]
    by_block = tl.reshape(lower, (BLOCKS, 16, BLOCKS, 16))
    own = tl.sum(tl.where(diagonal, by_block, 0.0), axis=2)
    line = tl.arange(0, 16)
    same = line[None, :, None] == line[None, None, :]
    inverse = tl.where(same & (block >= 0)[:, None, None], 1.0, 0.0)
    for current in tl.range(1, 16):
        here = (line == current)[None, :, None]
        factors = tl.sum(tl.where(here, own, 0.0), axis=1)
        change = tl.sum(factors[:, :, None] * inverse, axis=1)
        inverse = tl.where(here, inverse - change[:, None, :], inverse)
    spread = tl.where(diagonal, inverse[:, :, None, :], 0.0)
    inverses = tl.reshape(spread, (SIZE, SIZE))
    number = tl.arange(0, SIZE) // 16
    others = tl.where(number[:, None] > number[None, :], lower, 0.0)
    power = tl.dot(inverses, others, input_precision=PRECISION)
    square = tl.dot(power, power, input_precision=PRECISION)
    inner = inverses + tl.dot(square, inverses, input_precision=PRECISION)
    return inner - tl.dot(power, inner, input_precision=PRECISION)
