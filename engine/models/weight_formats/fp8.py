"""The weights in fp8 (e4m3) with scales. Inputs are quantised with a scale for each token.

    NAME.weight (out, in) e4m3    NAME.bias (out,), if there is one
    by channel    NAME.weight_scale (out, 1), (out,), or one number for the matrix
    by block      NAME.weight_scale_inv (ceil(out / 128), ceil(in / 128))
    static        NAME.input_scale, one number, if inputs do not have a scale for each token

Joined matrices use the largest of their input scales, as in vLLM. Shards divide rows or columns. If
they divide columns, every shard has all channel scales, or its part of the block scales.

Elsewhere: the fields of config.json (`fp8_checkpoints`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from engine.models.errors import UnsupportedModel
from engine.models.modules import (
    Allocator,
    CheckpointTensor,
    Experts,
    ExpertsConfig,
    Linear,
    LinearConfig,
)
from engine.models.weight_formats.fp8_values import as_column, fill, quantise_into
from engine.models.weight_formats.ignored import NOTHING, Ignored
from engine.models.weight_formats.plain import BIAS_SCALE, PLAIN
from engine.models.weight_formats.scales import checked_input_scale
from storage.layouts.kv_layout import ITEM_BYTES

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.experts.matrices import ExpertMatrix
    from kernels.linear.fp8_matrix import Fp8Matrix
    from kernels.linear.fp8_rows import Fp8Rows, Scaling
    from kernels.ops import Ops

_SCALE_BYTES = 4  # bytes of a float32
BLOCK = 128  # number of rows, and of columns, that share a scale

Weights = Literal["channel", "block"]
Inputs = Literal["token", "group", "static"]


@dataclass(frozen=True, slots=True)
class Fp8Linear(Linear):
    """A matrix `weight` with scales, `bias` (out,) or None, `input_scale` (1,) float32 or None."""

    config: LinearConfig
    weight: Fp8Matrix
    bias: Tensor | None
    input_scale: Tensor | None
    dtype: torch.dtype
    scale_name: str
    online: bool  # True: the files are unquantised, and loading quantises the weights

    @property
    def takes_fp8(self) -> Scaling | None:
        """The quantisation of the input, or None if the input's scale is static."""
        return None if self.input_scale is not None else self._scaling

    @property
    def _scaling(self) -> Scaling:
        return "group" if self.weight.by_block else "token"

    def product(self, ops: Ops, x: Tensor | Fp8Rows) -> Tensor:
        rows = ops.to_fp8(x, self._scaling, self.input_scale)
        compute = ops.linear_fp8_split_k if self.config.in_parts else ops.linear_fp8
        return compute(rows, self.weight, self.bias, self.dtype)

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self.weight.dequantised().to(dtype)

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """Yield weights, scales and biases."""
        by_rows = self.config.shards == "rows"
        of_weight, of_rows = (0, 0) if by_rows else (1, None)
        if self.online:
            yield from self._quantised_as_loaded(of_weight)
        else:
            yield from self.config.named("weight", self.weight.values, of_weight)
            yield from self._scales(of_weight if self.weight.by_block else of_rows)
        if self.bias is not None:
            yield from self.config.named("bias", self.bias, of_rows)
        if self.input_scale is not None:
            for name, _ in self.config.rows:
                yield CheckpointTensor(
                    f"{name}.input_scale", self.input_scale, None, self._larger_input_scale
                )

    def _scales(self, shard_dim: int | None) -> Iterator[CheckpointTensor]:
        step = BLOCK if self.weight.by_block else 1
        first = 0
        for name, rows, sections in self.config.in_sections:
            view = self.weight.scales[first : first - (-rows // step)]
            first += view.shape[0]
            scales = _scales(f"{name}.{self.scale_name}", view, shard_dim, self._scaling)
            yield replace(scales, sections=sections if shard_dim == 0 else ())

    def _quantised_as_loaded(self, shard_dim: int) -> Iterator[CheckpointTensor]:
        sizes = [rows for _, rows in self.config.rows]
        scales = self.weight.scales.split(sizes)  # type: ignore[no-untyped-call]
        whole = self.config.named("weight", self.weight.values, shard_dim)
        for tensor, view in zip(whole, scales, strict=True):
            yield replace(tensor, convert=quantise_into(view))

    def _larger_input_scale(self, value: Tensor) -> Tensor:
        assert self.input_scale is not None
        return self.input_scale.maximum(checked_input_scale(value))

    def fill(self, generator: torch.Generator) -> None:
        fill(self.weight.values, self.weight.scales, generator)
        if self.bias is not None:
            self.bias.normal_(0.0, BIAS_SCALE, generator=generator)
        if self.input_scale is not None:
            self.input_scale.fill_(1 / 32)


@dataclass(frozen=True, slots=True)
class Fp8Experts(Experts):
    """The experts with scales by channel or by block."""

    scale_name: str
    online: bool

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """Yield weights and scales of each expert."""
        of_columns = 1 if self.gate_up.kind == "block" else None
        for expert in range(self.config.num_experts):
            for part in self.config.parts(expert):
                matrix = self.down if part.is_down else self.gate_up
                assert matrix.scales is not None
                both = part.of(matrix.values[expert]), part.of(matrix.scales[expert])
                dims = (1, of_columns) if part.is_down else (0, 0)
                yield from self._matrix(part.name, *both, *dims)

    def _matrix(
        self, name: str, values: Tensor, scales: Tensor, of_values: int, of_scales: int | None
    ) -> Iterator[CheckpointTensor]:
        convert = quantise_into(scales) if self.online else None
        yield CheckpointTensor(f"{name}.weight", values, of_values, convert)
        if not self.online:
            scaling: Scaling = "group" if self.gate_up.kind == "block" else "token"
            yield _scales(f"{name}.{self.scale_name}", scales, of_scales, scaling)

    def fill(self, generator: torch.Generator) -> None:
        for matrix in (self.gate_up, self.down):
            assert matrix.scales is not None
            fill(matrix.values, matrix.scales, generator)


@dataclass(frozen=True, slots=True)
class Fp8Format:
    """A variant of fp8. Implements `WeightFormat`. Matrices in `ignored` are unquantised."""

    name: str
    weights: Weights
    inputs: Inputs
    ignored: Ignored = NOTHING
    scale_name: str = "weight_scale"
    online: bool = False

    def linear(self, config: LinearConfig, new: Allocator) -> Linear:
        """Allocate a matrix. Raises UnsupportedModel, for example if a block spans two matrices."""
        import torch

        from kernels.linear.fp8_matrix import Fp8Matrix

        if self.ignored.covers([name for name, _ in config.rows]):
            return PLAIN.linear(config, new)
        self._check(config)
        by_block = self.weights == "block"
        columns = config.size_in // BLOCK if by_block else 1
        rows = -(-config.size_out // BLOCK) if by_block else config.size_out
        static = self.inputs == "static"
        values = new.empty(config.size_out, config.size_in, dtype=torch.float8_e4m3fn)
        scales = new.empty(rows, columns, dtype=torch.float32)
        return Fp8Linear(
            config,
            Fp8Matrix(values, scales, by_block),
            new.empty(config.size_out) if config.bias else None,
            new.empty(1, dtype=torch.float32).zero_() if static else None,
            new.dtype,
            self.scale_name,
            self.online,
        )

    def experts(self, config: ExpertsConfig, new: Allocator) -> Experts:
        """Allocate experts. Raises UnsupportedModel if they are not served in this format."""
        if self.ignored.covers(config.matrices(0)):
            return PLAIN.experts(config, new)
        if config.bias or config.packed:
            raise UnsupportedModel(
                f"quantization {self.name!r}: experts with biases, or packed in one tensor, are "
                "served in plain weights only"
            )
        if self.inputs == "static":
            raise _not_static()
        if self.weights == "block" and (config.size % BLOCK or config.size_in % BLOCK):
            raise UnsupportedModel(
                f"quantization_config.weight_block_size: experts of {config.size} x "
                f"{config.size_in} are not whole blocks of {BLOCK}"
            )
        gate_up = self._expert_matrix(config, config.inner_size, config.size_in, new)
        down = self._expert_matrix(config, config.size_in, config.size, new)
        return Fp8Experts(config, gate_up, down, self.scale_name, self.online)

    def num_bytes(self, config: LinearConfig, dtype: str) -> int:
        if self.ignored.covers([name for name, _ in config.rows]):
            return PLAIN.num_bytes(config, dtype)
        self._check(config)
        blocks = -(-config.size_out // BLOCK) * (config.size_in // BLOCK)
        scales = blocks if self.weights == "block" else config.size_out
        bias = ITEM_BYTES[dtype] * config.size_out * config.bias
        static = _SCALE_BYTES * (self.inputs == "static")
        return config.size_out * config.size_in + _SCALE_BYTES * scales + bias + static

    def check_shard(self, config: LinearConfig) -> None:
        """Raise UnsupportedModel if dividing a matrix among ranks would split a block."""
        if self.weights != "block" or self.ignored.covers([name for name, _ in config.rows]):
            return
        sizes = [(config.rows[0][0], config.size_in)]
        if config.shards == "rows":
            sizes = [(name, size) for name, _, sections in config.in_sections for size in sections]
        for name, size in sizes:
            if size % BLOCK:
                raise UnsupportedModel(
                    f"quantization_config.weight_block_size: a rank's {size} {config.shards} of "
                    f"{name} are not whole blocks of {BLOCK}"
                )

    def _check(self, config: LinearConfig) -> None:
        if config.of_expert and self.inputs == "static":
            raise _not_static()
        if self.weights == "block":
            _check_blocks(config)

    def _expert_matrix(
        self, config: ExpertsConfig, rows: int, columns: int, new: Allocator
    ) -> ExpertMatrix:
        import torch

        from kernels.experts.matrices import ExpertMatrix

        sizes = (rows // BLOCK, columns // BLOCK) if self.weights == "block" else (rows, 1)
        values = new.empty(config.num_experts, rows, columns, dtype=torch.float8_e4m3fn)
        return ExpertMatrix(values, new.empty(config.num_experts, *sizes, dtype=torch.float32))


def _scales(name: str, view: Tensor, shard_dim: int | None, scaling: Scaling) -> CheckpointTensor:
    convert = None if scaling == "group" else as_column(view)
    return CheckpointTensor(name, view, shard_dim, convert, is_scale=True)


def _not_static() -> UnsupportedModel:
    return UnsupportedModel(
        "quantization_config: experts with static input scales are not served; served are "
        "inputs scaled token by token or by group"
    )


def _check_blocks(config: LinearConfig) -> None:
    whole = all(rows % BLOCK == 0 for _, rows in config.rows[:-1])
    if config.size_in % BLOCK or not whole:
        name, rows = config.rows[0]
        raise UnsupportedModel(
            f"quantization_config.weight_block_size: {name} of {rows} x {config.size_in} is not "
            f"whole blocks of {BLOCK}"
        )
