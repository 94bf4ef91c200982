"""The experts in int4, in the layout that their kernels read. Inputs have the model's dtype.

Model checkpoints store each matrix of each expert separately, in a form of `int4_forms`. In the
engine one tensor has all experts of a layer (`kernels.experts.four_bit_matrices`). A scale and its
zero point are in one word. Loading one of them does not change the bits of the other. Shards divide
the inner width, in multiples of a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.models.modules import Allocator, CheckpointTensor, ExpertPart, Experts, ExpertsConfig
from engine.models.weight_formats.int4_forms import (
    SYMMETRIC_ZERO,
    Convert,
    Form,
    Int4Views,
    bytes_of,
    checkpoint_tensors,
    in_words,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.experts.four_bit_matrices import FourBitMatrix

USUAL = 4.6  # standard deviation of uniformly distributed 4-bit integers


@dataclass(frozen=True, slots=True)
class Int4Experts(Experts):
    """The experts whose matrices are in int4."""

    gate_up: FourBitMatrix
    down: FourBitMatrix
    form: Form
    has_zeros: bool

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """Yield integers, scales and zero points of each expert."""
        for expert in range(self.config.num_experts):
            for part in self.config.parts(expert):
                views = self._views(part, expert)
                yield from checkpoint_tensors(self.form, views, has_bias=False)

    def _views(self, part: ExpertPart, expert: int) -> ExpertViews:
        matrix = self.down if part.is_down else self.gate_up
        groups = matrix.columns // matrix.group
        scales = part.of(matrix.scales[expert, :groups], 1)
        return ExpertViews(
            part.name,
            part.of(matrix.values[expert], 1),
            scales,
            scales if self.has_zeros else None,
            matrix.group,
            not part.is_down,
            (),
            matrix.columns,
            matrix.dtype,
        )

    def fill(self, generator: torch.Generator) -> None:
        for matrix in (self.gate_up, self.down):
            matrix.values.random_(-(1 << 15), 1 << 15, generator=generator)
            _fill_scales(matrix, generator, has_zeros=self.has_zeros)


@dataclass(frozen=True, slots=True)
class ExpertViews(Int4Views):
    """The views of an expert's matrix: `values` (K / 128, N, 32) int16, scales (K / G, N) int32."""

    columns: int
    dtype: torch.dtype

    def integers(
        self, suffix: str, rows_dim: int, order: Sequence[int], along: int
    ) -> CheckpointTensor:
        from kernels.experts.four_bit_matrices import words_of

        def convert(value: Tensor) -> Tensor:
            codes = bytes_of(value, order, along)
            return words_of(codes.T if rows_dim else codes, "int4")

        stored = in_words(self._sizes(self.columns, rows_dim), along)
        return self._tensor(suffix, self.values, rows_dim, convert, stored)

    def steps(self, suffix: str, rows_dim: int) -> CheckpointTensor:
        """Return the tensor of scales. Loading them does not change the zero points."""
        from kernels.experts.four_bit_matrices import ZERO_BITS, int4_scales

        view = self.scales if rows_dim else self.scales.T

        def convert(value: Tensor) -> Tensor:
            return int4_scales(value.to(self.dtype), 0) | view & ZERO_BITS

        stored = self._sizes(len(self.scales), rows_dim)
        return self._tensor(suffix, view, rows_dim, convert, stored, is_scale=True)

    def points(self, suffix: str, rows_dim: int, convert: Convert) -> CheckpointTensor:
        """Return the tensor of zero points. Loading it does not change the scales."""
        from kernels.experts.four_bit_matrices import ZERO_BITS

        view = self.scales if rows_dim else self.scales.T

        def converted(value: Tensor) -> Tensor:
            return convert(value).int() | view & ~ZERO_BITS

        stored = in_words(self._sizes(len(self.scales), rows_dim), rows_dim)
        return self._tensor(suffix, view, rows_dim, converted, stored)

    def _sizes(self, columns: int, rows_dim: int) -> tuple[int, int]:
        rows = self.values.shape[1]
        return (columns, rows) if rows_dim else (rows, columns)


def int4_experts(
    config: ExpertsConfig, group: int, form: Form, new: Allocator, *, has_zeros: bool
) -> Int4Experts:
    """Allocate experts. Only the zero points of symmetric weights are initialised."""
    gate_up = _matrix(config, config.inner_size, config.size_in, group, new)
    down = _matrix(config, config.size_in, config.size, group, new)
    return Int4Experts(config, gate_up, down, form, has_zeros)


def _matrix(
    config: ExpertsConfig, rows: int, columns: int, group: int, new: Allocator
) -> FourBitMatrix:
    import torch

    from kernels.experts.four_bit_matrices import FourBitMatrix, shapes

    of_values, of_scales = shapes("int4", config.num_experts, rows, columns, group)
    values = new.empty(*of_values, dtype=torch.int16)
    scales = new.empty(*of_scales, dtype=torch.int32).fill_(SYMMETRIC_ZERO)
    return FourBitMatrix("int4", columns, group, new.dtype, values, scales)


def _fill_scales(matrix: FourBitMatrix, generator: torch.Generator, *, has_zeros: bool) -> None:
    import torch

    from kernels.experts.four_bit_matrices import int4_scales

    like = matrix.scales
    steps = torch.empty(like.shape, dtype=matrix.dtype, device=like.device)
    steps.uniform_(0.5, 1.5, generator=generator).mul_(matrix.columns**-0.5 / USUAL)
    zeros = torch.full_like(like, SYMMETRIC_ZERO)
    if has_zeros:
        zeros.random_(6, 10, generator=generator)
    like.copy_(int4_scales(steps, zeros))
