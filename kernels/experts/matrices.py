"""The matrices of all experts of a layer, stacked, and their dequantisation.

    gate_up (E, 2 I, H): [gate | up], or (E, I, H): only up      down (E, H, I)

Fp8 matrices have scales like `Fp8Matrix`: (E, N, 1) by channel, or (E, ceil(N / 128), K / 128) by
block. Four-bit matrices have another layout (`four_bit_matrices`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from kernels.experts.four_bit_matrices import FourBitMatrix
from kernels.linear.fp8_matrix import Fp8Matrix

Scales = Literal["none", "channel", "block"]


@dataclass(frozen=True, slots=True)
class ExpertMatrix:
    """The matrices `values` (E, N, K), `scales` float32 or None, `bias` (E, N) or None."""

    values: Tensor
    scales: Tensor | None = None
    bias: Tensor | None = None

    @property
    def num_experts(self) -> int:
        """The number of experts, E."""
        return self.values.shape[0]

    @property
    def rows(self) -> int:
        """The number of rows of a matrix, N."""
        return self.values.shape[1]

    @property
    def kind(self) -> Scales:
        """The kind of scales of the matrices."""
        if self.scales is None:
            return "none"
        return "channel" if self.scales.shape[1] == self.values.shape[1] else "block"

    def dequantised(self, expert: int) -> Tensor:
        """Dequantise one expert -> (N, K) float32."""
        if self.scales is None:
            return self.values[expert].float()
        by_block = self.kind == "block"
        return Fp8Matrix(self.values[expert], self.scales[expert], by_block).dequantised()


AnyMatrix = ExpertMatrix | FourBitMatrix
