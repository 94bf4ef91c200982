"""A matrix of 4-bit integers, with a scale and a zero point for each group of columns.

    weight[n, k] = (q[n, k] - zeros[k // G, n]) * scales[k // G, n], rounded once to 16 bits

Groups have 32, 64 or 128 columns. Symmetric matrices have no zero points, and 8 is used instead.
Four integers of a row, from columns that are 32 apart, share a word of 16 bits:

    columns    0 .. 31      32 .. 63     64 .. 95     96 .. 127     of each span of 128
    word       0 .. 31, by their lowest 4 bits, the next ...

A kernel gets 32 adjacent columns from the same bits of 32 words, and need not interleave columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.limits import INT4_SPAN

SPAN = INT4_SPAN  # number of columns whose integers share words
IN_WORD = 4  # number of integers in a word
STRIDE = SPAN // IN_WORD  # distance in columns between the integers of a word
SYMMETRIC_ZERO = 8


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """A matrix: `values` (N, K / 4) int16, `scales` and `zeros` (K / G, N), zeros uint8 or None."""

    values: Tensor
    scales: Tensor
    zeros: Tensor | None

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (N, K)."""
        features, words = self.values.shape
        return features, words * IN_WORD

    @property
    def group(self) -> int:
        """The number of columns that share a scale."""
        return self.shape[1] // self.scales.shape[0]

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """Dequantise to (N, K). Plain PyTorch."""
        zeros = SYMMETRIC_ZERO if self.zeros is None else self._by_column(self.zeros).float()
        integers = unpacked(self.values).float() - zeros
        return (integers * self._by_column(self.scales).float()).to(dtype)

    def _by_column(self, of_groups: Tensor) -> Tensor:
        return of_groups.T.repeat_interleave(self.group, 1)


def packed(integers: Tensor) -> Tensor:
    """Pack integers (N, K) from 0 to 15 -> words (N, K / 4) int16. K is a multiple of 128."""
    features, width = integers.shape
    parts = integers.view(features, width // SPAN, IN_WORD, STRIDE)
    words = parts[:, :, 0].to(torch.int16, copy=True)
    for place in range(1, IN_WORD):
        words |= parts[:, :, place].to(torch.int16) << 4 * place
    return words.view(features, width // IN_WORD)


def unpacked(words: Tensor) -> Tensor:
    """Unpack words (N, K / 4) int16 -> integers (N, K) int16."""
    features, width = words.shape
    parts = words.view(features, width // STRIDE, 1, STRIDE)
    each = [(parts >> 4 * place) & 15 for place in range(IN_WORD)]
    return torch.cat(each, 2).view(features, width * IN_WORD)
