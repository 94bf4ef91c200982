"""The experts in mxfp4. They are read in gpt-oss's form, and converted to their kernels' layout.

    gate_up_proj_blocks (E, 2 I, H / 32, 16)    gate_up_proj_scales (E, 2 I, H / 32)
    down_proj_blocks (E, H, I / 32, 16)         down_proj_scales (E, H, I / 32)

Rows of gate and up alternate in files. In memory, all rows of gate precede all rows of up, and bits
have another order (`kernels.experts.four_bit_matrices`). All other matrices of a checkpoint in
mxfp4 are unquantised. Shards divide I in multiples of 32.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import floor, log2
from typing import TYPE_CHECKING, Any

import msgspec

from engine.models.errors import CheckpointError, UnsupportedModel
from engine.models.modules import Allocator, CheckpointTensor, Experts, ExpertsConfig, LinearConfig
from engine.models.weight_formats.ignored import check_pattern
from engine.models.weight_formats.plain import BIAS_SCALE, PLAIN, PlainLinear, packed_biases
from engine.models.weight_formats.quantization_config import FIELD, converted
from kernels.limits import INT4_SPAN
from storage.layouts.kv_layout import ITEM_BYTES

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.experts.four_bit_matrices import FourBitMatrix

NAME = "mxfp4"
GROUP = 32  # number of columns that share a scale
LARGEST_SCALE = 128  # largest stored exponent that kernels support; it means a factor of 2
USUAL = 2.9  # standard deviation of uniformly distributed fp4 codes
# Bytes of numbers and scales in one span of a row.
_SPAN_BYTES = INT4_SPAN // 2 + INT4_SPAN // GROUP


class _Raw(msgspec.Struct):
    quant_method: str
    modules_to_not_convert: list[str] | None = None


def read_mxfp4(quantization: dict[str, Any]) -> Mxfp4Format:
    """Read the format for `quant_method` "mxfp4". Raises BadConfig."""
    raw = converted(quantization, _Raw)
    for pattern in raw.modules_to_not_convert or ():
        check_pattern("modules_to_not_convert", pattern)
    return Mxfp4Format(NAME, tuple(raw.modules_to_not_convert or ()))


@dataclass(frozen=True, slots=True)
class Mxfp4Format:
    """The mxfp4 format. Implements `WeightFormat`. `plain` has patterns of unquantised modules."""

    name: str = NAME
    plain: tuple[str, ...] = ()

    def linear(self, config: LinearConfig, new: Allocator) -> PlainLinear:
        return PLAIN.linear(config, new)

    def experts(self, config: ExpertsConfig, new: Allocator) -> Experts:
        """Allocate experts, in mxfp4 or unquantised. The files have one tensor for all experts."""
        if self._leaves(config.prefix.removesuffix(".")):
            return PLAIN.experts(config, new)
        gate_up = _matrix(config, config.inner_size, config.size_in, new)
        return Mxfp4Experts(config, gate_up, _matrix(config, config.size_in, config.size, new))

    def num_bytes(self, config: LinearConfig, dtype: str) -> int:
        """Count the bytes of a matrix. Experts have 4 bits per number. A row has complete spans."""
        name, _ = config.rows[0]
        if not self._packs(config):
            return PLAIN.num_bytes(config, dtype)
        if config.size_in % GROUP:
            raise UnsupportedModel(
                f"{FIELD}: {name} of {config.size_in} columns is not whole groups of {GROUP}"
            )
        row_bytes = -(-config.size_in // INT4_SPAN) * _SPAN_BYTES + ITEM_BYTES[dtype] * config.bias
        return config.size_out * row_bytes

    def check_shard(self, config: LinearConfig) -> None:
        """Raise UnsupportedModel if dividing a matrix among ranks would split a group."""
        name, _ = config.rows[0]
        if self._packs(config) and config.size_in % GROUP:
            raise UnsupportedModel(
                f"{FIELD}: a rank's {config.size_in} columns of {name} are not whole groups of "
                f"{GROUP}"
            )

    def _packs(self, config: LinearConfig) -> bool:
        name, _ = config.rows[0]
        return config.of_expert and not self._leaves(name.rsplit(".", 2)[0])

    def _leaves(self, module: str) -> bool:
        """Return whether a module is unquantised: its name begins or ends with a listed pattern."""
        return any(re.match(one, module) or module.endswith(one) for one in self.plain)


MXFP4 = Mxfp4Format()


def _matrix(config: ExpertsConfig, rows: int, columns: int, new: Allocator) -> FourBitMatrix:
    import torch  # imported here, so that configs can be read without torch

    from kernels.experts.four_bit_matrices import FourBitMatrix, shapes

    values, scales = shapes("mxfp4", config.num_experts, rows, columns, GROUP)
    return FourBitMatrix(
        "mxfp4",
        columns,
        GROUP,
        new.dtype,
        new.empty(*values, dtype=torch.int16),
        new.empty(*scales, dtype=torch.int32),
        new.empty(config.num_experts, rows) if config.bias else None,
    )


@dataclass(frozen=True, slots=True)
class Mxfp4Experts(Experts):
    """The experts whose matrices are in mxfp4."""

    gate_up: FourBitMatrix
    down: FourBitMatrix

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """Yield blocks, scales and biases, each as one tensor for all experts."""
        config = self.config
        both, down = f"{config.prefix}gate_up_proj", f"{config.prefix}down_proj"
        yield from _tensors(both, self.gate_up, 1, in_turn=True)
        yield from _tensors(down, self.down, 2, in_turn=False)
        yield from packed_biases(config, self.gate_up, self.down)

    def fill(self, generator: torch.Generator) -> None:
        for matrix in (self.gate_up, self.down):
            matrix.values.random_(-(1 << 15), 1 << 15, generator=generator)
            least = 127 + floor(log2(matrix.columns**-0.5 / USUAL))
            _bytes_of(matrix.scales).random_(least, least + 2, generator=generator)
            if matrix.bias is not None:
                matrix.bias.normal_(0.0, BIAS_SCALE, generator=generator)


def _bytes_of(words: Tensor) -> Tensor:
    import torch

    return words.view(torch.uint8)


def _tensors(
    name: str, matrix: FourBitMatrix, shard_dim: int, *, in_turn: bool
) -> Iterator[CheckpointTensor]:
    """Yield blocks and scales. With `in_turn`, the rows of two matrices alternate in the files."""
    from kernels import mxfp4  # imported here, because it imports torch

    blocks, scales = mxfp4.shapes(matrix.num_experts, matrix.rows, matrix.columns)
    of_blocks = partial(_kept, mxfp4.values_of, in_turn=in_turn)
    of_scales = partial(_kept_scales, mxfp4.scales_of, in_turn=in_turn)
    yield CheckpointTensor(f"{name}_blocks", matrix.values, shard_dim, of_blocks, blocks)
    yield CheckpointTensor(f"{name}_scales", matrix.scales, shard_dim, of_scales, scales)


def _kept(of: Callable[[Tensor], Tensor], value: Tensor, *, in_turn: bool) -> Tensor:
    """Convert blocks or scales with `of`, expert by expert. Raises CheckpointError."""
    import torch

    if value.dtype != torch.uint8:
        raise CheckpointError(f"{value.dtype} is no mxfp4")
    return torch.stack([of(_halves(one) if in_turn else one) for one in value])


def _kept_scales(of: Callable[[Tensor], Tensor], value: Tensor, *, in_turn: bool) -> Tensor:
    """Convert scales. Raises CheckpointError if a scale is too large for the kernels."""
    import torch

    if value.dtype == torch.uint8 and (largest := int(value.max())) > LARGEST_SCALE:
        raise CheckpointError(f"a scale is 2^{largest - 127}: served are at most 2^1")
    return _kept(of, value, in_turn=in_turn)


def _halves(in_turn: Tensor) -> Tensor:
    """Reorder alternating rows (2 I, ...) of two matrices: all of the first, then the second."""
    rows, *rest = in_turn.shape
    return in_turn.view(rows // 2, 2, *rest).transpose(0, 1).reshape(rows, *rest)
