"""The four-bit matrices of all experts of a layer, in the layout that their GEMMs read.

    values    (E, K / 128, N, 32) int16    a word has four numbers of a row, 32 columns apart
    mxfp4     a number is e2m1; 32 columns share a scale, a power of two (e8m0)
              scales (E, K / 128, N) int32: a span's four scales, the first in the low byte
    int4      (q - zero) * scale, rounded once to `dtype`, in groups of 32, 64 or 128 columns
              scales (E, K / G, N) int32: a scale in float32, whose lowest 8 bits are the zero point

Columns are divided into spans of 128. The last span of a row is padded with zeros. The rows of a
span follow each other in memory, so that a program reads contiguous memory. `four_bit_numbers`
describes the order of bits in a word.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from kernels.launch.rounding import cdiv
from kernels.limits import INT4_SPAN

Kind = Literal["mxfp4", "int4"]
SPAN = INT4_SPAN  # number of columns in a span
IN_WORD = 4  # number of numbers in a word
STRIDE = SPAN // IN_WORD  # distance in columns between the numbers of a word
ZERO_BITS = 0xFF  # the bits of the zero point in a word with a scale
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_EXPONENT_BIAS = 127
# For each of the four e2m1 numbers in a word, the positions of its bits, the sign first.
_E2M1_BITS = ((15, 8, 7, 6), (12, 5, 4, 3), (9, 2, 1, 0), (14, 13, 11, 10))


@dataclass(frozen=True, slots=True)
class FourBitMatrix:
    """The experts' four-bit matrices with K `columns`, for products in `dtype`. `bias` (E, N)."""

    kind: Kind
    columns: int
    group: int
    dtype: torch.dtype
    values: Tensor
    scales: Tensor
    bias: Tensor | None = None

    @property
    def num_experts(self) -> int:
        """The number of experts, E."""
        return self.values.shape[0]

    @property
    def rows(self) -> int:
        """The number of rows of a matrix, N."""
        return self.values.shape[2]

    def dequantised(self, expert: int) -> Tensor:
        """Dequantise one expert -> (N, K) float32, rounded to `dtype`. Plain PyTorch."""
        parts = _numbers_of_words(self.kind, self.values.device)[_as_index(self.values[expert])]
        steps, zeros = self._of_places(self.scales[expert])
        if zeros is not None:
            parts -= zeros[:, :, None]
        parts *= steps[:, :, None]
        return _in_columns(parts)[:, : self.columns].to(self.dtype).float()

    def _of_places(self, words: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the scales and zero points for each span, row and place in a word, in float32."""
        if self.kind == "mxfp4":
            exponents = torch.stack([words >> 8 * place & 0xFF for place in range(IN_WORD)], 2)
            return torch.ldexp(torch.ones_like(exponents).float(), exponents - _EXPONENT_BIAS), None
        by_span = words.unflatten(0, (-1, SPAN // self.group))
        by_place = by_span.repeat_interleave(self.group // STRIDE, 1).transpose(1, 2)
        return scale_of(by_place), (by_place & ZERO_BITS).float()


def shapes(
    kind: Kind, experts: int, rows: int, columns: int, group: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of values and scales."""
    spans = cdiv(columns, SPAN)
    words = spans if kind == "mxfp4" else spans * (SPAN // group)
    return (experts, spans, rows, STRIDE), (experts, words, rows)


def words_of(codes: Tensor, kind: Kind) -> Tensor:
    """Pack codes (N, K) uint8 from 0 to 15 -> values (K / 128, N, 32) int16."""
    rows, columns = codes.shape
    spans = cdiv(columns, SPAN)
    whole = torch.nn.functional.pad(codes, (0, spans * SPAN - columns))
    parts = whole.reshape(rows, spans, IN_WORD, STRIDE).transpose(0, 1)
    words = torch.zeros((spans, rows, STRIDE), dtype=torch.int32, device=codes.device)
    for place in range(IN_WORD):
        words |= _placed(parts[:, :, place].int(), place, kind)
    return words.to(torch.int16)


def _placed(codes: Tensor, place: int, kind: Kind) -> Tensor:
    if kind == "int4":
        return codes << 4 * place
    found = torch.zeros_like(codes)
    for index, bit in enumerate(_E2M1_BITS[place]):
        found |= (codes >> (3 - index) & 1) << bit
    return found


def codes_of(values: Tensor, kind: Kind) -> Tensor:
    """Unpack values (spans, N, 32) int16 -> codes (N, spans * 128) int32."""
    words = values.int() & 0xFFFF
    return _in_columns(torch.stack([_taken(words, place, kind) for place in range(IN_WORD)], 3))


def _in_columns(parts: Tensor) -> Tensor:
    spans, rows, *_ = parts.shape
    return parts.permute(1, 0, 3, 2).reshape(rows, spans * SPAN)


def _as_index(words: Tensor) -> Tensor:
    return words.long() & 0xFFFF


@cache  # cached (1 MiB), because making the table takes longer than reading a small matrix
def _numbers_of_words(kind: Kind, device: torch.device) -> Tensor:
    """Tabulate the four numbers in each possible word, without scales, (65536, 4) float32."""
    words = torch.arange(1 << 16, dtype=torch.int32, device=device)
    codes = torch.stack([_taken(words, place, kind) for place in range(IN_WORD)], 1)
    if kind == "int4":
        return codes.float()
    return torch.tensor([*_MAGNITUDES, *(-one for one in _MAGNITUDES)], device=device)[codes]


def _taken(words: Tensor, place: int, kind: Kind) -> Tensor:
    if kind == "int4":
        return words >> 4 * place & 15
    found = torch.zeros_like(words)
    for index, bit in enumerate(_E2M1_BITS[place]):
        found |= (words >> bit & 1) << (3 - index)
    return found


def mxfp4_scales(exponents: Tensor) -> Tensor:
    """Pack exponents (N, K / 32) uint8 -> words (K / 128, N) int32."""
    rows, groups = exponents.shape
    spans = cdiv(groups, IN_WORD)
    whole = torch.nn.functional.pad(exponents, (0, spans * IN_WORD - groups))
    parts = whole.int().reshape(rows, spans, IN_WORD)
    words = sum(parts[:, :, place] << 8 * place for place in range(IN_WORD))
    assert isinstance(words, Tensor)
    return words.T


def int4_scales(scales: Tensor, zeros: Tensor | int) -> Tensor:
    """Pack scales, of any float dtype, and zero points (0 to 255) into int32 of the same shape.

    16-bit scales stay exact. Float32 scales are rounded to 16 significant bits.
    """
    bits = scales.float().view(torch.int32)
    return (bits + (ZERO_BITS + 1) // 2) & ~ZERO_BITS | zeros


def scale_of(words: Tensor) -> Tensor:
    """Extract the scales from words, as float32."""
    return (words & ~ZERO_BITS).view(torch.float32)
