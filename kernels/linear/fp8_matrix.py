"""A matrix in fp8 (e4m3) with one scale for each output channel or each block of 128 x 128.

by channel    scales (N, 1)                  weight[n, k] = values[n, k] * scales[n]
by block      scales (ceil(N / 128), K / 128)  ... * scales[n // 128, k // 128]
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.e4m3 import fits, rounded

BLOCK = 128
LEAST_SCALE = 1e-12  # scale of a channel that has only zeros


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """A matrix: `values` (N, K) e4m3, `scales` float32 (N, 1), or one per block of 128 x 128."""

    values: Tensor
    scales: Tensor
    by_block: bool

    def dequantised(self) -> Tensor:
        """Dequantise to (N, K) float32."""
        if not self.by_block:
            return self.values.float() * self.scales
        features, width = self.values.shape
        wide = self.scales.repeat_interleave(BLOCK, 0)[:features]
        return self.values.float() * wide.repeat_interleave(BLOCK, 1)[:, :width]


def scaled_to_e4m3(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise weight (N, K) of any float dtype -> values (N, K) e4m3, scales (N, 1) float32."""
    largest = weight.abs().amax(1, keepdim=True).float()
    scales = fits(largest).clamp(min=LEAST_SCALE)
    return rounded(weight.float() / scales), scales
