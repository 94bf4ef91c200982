"""The weights as numbers of the model's dtype: float32, bfloat16 or float16.

    NAME.weight (out, in)    NAME.bias (out,), if there is one

Most model checkpoints have separate matrices for each expert. In the engine one tensor has all
experts. Shards divide the rows of weight and bias, or the columns of the weight. If they divide the
columns, only one shard adds the bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from engine.models.modules import (
    Allocator,
    CheckpointTensor,
    Experts,
    ExpertsConfig,
    Linear,
    LinearConfig,
    WeightFormat,
)
from storage.layouts.kv_layout import ITEM_BYTES

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.experts.matrices import AnyMatrix, ExpertMatrix
    from kernels.linear.fp8_rows import Fp8Rows
    from kernels.ops import Ops

BIAS_SCALE = 0.02  # standard deviation of dummy biases


@dataclass(frozen=True, slots=True)
class PlainLinear(Linear):
    """A matrix `weight` (out, in) with `bias` (out,) or None."""

    config: LinearConfig
    weight: Tensor
    bias: Tensor | None

    def product(self, ops: Ops, x: Tensor | Fp8Rows) -> Tensor:
        compute = ops.linear_split_k if self.config.in_parts else ops.linear
        # Never fp8, because `takes_fp8` is None.
        return compute(cast("Tensor", x), self.weight, self.bias)

    def dense(self, dtype: torch.dtype) -> Tensor:  # noqa: ARG002  it has the model's
        return self.weight

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """Yield weights and biases."""
        by_rows = self.config.shards == "rows"
        yield from self.config.named("weight", self.weight, 0 if by_rows else 1)
        if self.bias is not None:
            yield from self.config.named("bias", self.bias, 0 if by_rows else None)

    def fill(self, generator: torch.Generator) -> None:
        fill_matrix(self.weight, generator)
        if self.bias is not None:
            self.bias.normal_(0.0, BIAS_SCALE, generator=generator)


def matrix_bytes(weight_format: WeightFormat, config: LinearConfig, dtype: str) -> int:
    """Count the bytes of an unquantised matrix in a model of this dtype, without torch."""
    kept_in = PLAIN if config.plain else weight_format
    return kept_in.num_bytes(config, dtype)


@dataclass(frozen=True, slots=True)
class PlainExperts(Experts):
    """The experts as numbers of the model's dtype."""

    gate_up: ExpertMatrix
    down: ExpertMatrix

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the weights and biases of each expert, or of all experts as one tensor."""
        if self.config.packed:
            yield from packed_experts(self.config, self.gate_up, self.down)
            return
        for expert in range(self.config.num_experts):
            for part in self.config.parts(expert):
                matrix = self.down if part.is_down else self.gate_up
                of_weight, of_bias = (1, None) if part.is_down else (0, 0)
                view = part.of(matrix.values[expert])
                yield CheckpointTensor(f"{part.name}.weight", view, of_weight)
                if matrix.bias is not None:
                    shift = part.of(matrix.bias[expert])
                    yield CheckpointTensor(f"{part.name}.bias", shift, of_bias)

    def fill(self, generator: torch.Generator) -> None:
        for matrix in (self.gate_up, self.down):
            matrix.values.normal_(0.0, matrix.values.shape[2] ** -0.5, generator=generator)
            if matrix.bias is not None:
                matrix.bias.normal_(0.0, BIAS_SCALE, generator=generator)


def packed_experts(
    config: ExpertsConfig, gate_up: ExpertMatrix, down: ExpertMatrix
) -> Iterator[CheckpointTensor]:
    """Yield the tensors of a checkpoint that has one tensor for all experts.

    Inputs come before outputs. Outputs of gate and up alternate, or are two halves.

        gate_up_proj (E, H, 2 I), gate_up_proj_bias (E, 2 I)    down_proj (E, I, H), ..._bias (E, H)

    Shards divide I, which is dimension `shard_dim` of each view.
    """
    count, both, size_in = config.num_experts, 2 * config.size, config.size_in
    apart = gate_up.values.view(-1, 2, config.size, size_in)
    stored = count, size_in, both
    convert, sections = (_halves_first, (1, 1)) if config.halves else (_outputs_first, ())
    name = f"{config.prefix}gate_up_proj"
    yield CheckpointTensor(name, apart, 2, convert, stored, sections=sections)
    yield CheckpointTensor(f"{config.prefix}down_proj", down.values.transpose(1, 2), 1)
    yield from packed_biases(config, gate_up, down)


def packed_biases(
    config: ExpertsConfig, gate_up: AnyMatrix, down: AnyMatrix
) -> Iterator[CheckpointTensor]:
    """Yield the biases, each as one tensor for all experts, if there are any."""
    if gate_up.bias is None or down.bias is None:
        return
    stored = config.num_experts, 2 * config.size
    in_turn = gate_up.bias.view(-1, 2, config.size).transpose(1, 2)
    yield CheckpointTensor(f"{config.prefix}gate_up_proj_bias", in_turn, 1, _pairs, stored)
    yield CheckpointTensor(f"{config.prefix}down_proj_bias", down.bias)


def _pairs(in_turn: Tensor) -> Tensor:
    """Reorder (E, 2 I, ...) -> (E, I, 2, ...)."""
    count, rows, *rest = in_turn.shape
    return in_turn.reshape(count, rows // 2, 2, *rest)


def _outputs_first(packed: Tensor) -> Tensor:
    """Reorder (E, H, 2 I) -> (E, 2, I, H)."""
    return _pairs(packed.transpose(1, 2)).transpose(1, 2)


def _halves_first(packed: Tensor) -> Tensor:
    """Reorder (E, H, 2 I), with gate before up, -> (E, 2, I, H)."""
    count, size_in, rows = packed.shape
    return packed.transpose(1, 2).reshape(count, 2, rows // 2, size_in)


def fill_matrix(matrix: Tensor, generator: torch.Generator) -> None:
    """Fill with random values scaled by the fan-in, so that a product is as large as its input."""
    matrix.normal_(0.0, matrix.shape[1] ** -0.5, generator=generator)


@dataclass(frozen=True, slots=True)
class PlainFormat:
    """The format of unquantised weights. Implements `WeightFormat`."""

    name: str = "plain"

    def linear(self, config: LinearConfig, new: Allocator) -> PlainLinear:
        bias = new.empty(config.size_out) if config.bias else None
        return PlainLinear(config, new.empty(config.size_out, config.size_in), bias)

    def experts(self, config: ExpertsConfig, new: Allocator) -> PlainExperts:
        from kernels.experts.matrices import ExpertMatrix  # imported here, because it imports torch

        gate_up = new.empty(config.num_experts, config.inner_size, config.size_in)
        down = new.empty(config.num_experts, config.size_in, config.size)
        if not config.bias:
            return PlainExperts(config, ExpertMatrix(gate_up), ExpertMatrix(down))
        biases = [new.empty(*matrix.shape[:2]) for matrix in (gate_up, down)]
        return PlainExperts(
            config, ExpertMatrix(gate_up, None, biases[0]), ExpertMatrix(down, None, biases[1])
        )

    def num_bytes(self, config: LinearConfig, dtype: str) -> int:
        return ITEM_BYTES[dtype] * config.size_out * (config.size_in + config.bias)

    def check_shard(self, config: LinearConfig) -> None:
        """Accept any division, because rows and columns are independent."""


PLAIN = PlainFormat()
