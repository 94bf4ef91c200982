"""The weights as 4-bit integers in groups of columns, with inputs of the model's dtype (W4A16).

    values (N, K / 4) int16    scales (K / G, N)    zeros (K / G, N) uint8, if not symmetric

All forms in model checkpoints (`int4_forms`) are converted to this form
(`kernels.linear.int4_matrix`). Scales are converted to the model's dtype, which may round them.
Shards divide rows, or columns in groups of 128, with the scales of these rows or columns. Experts
have another form (`int4_experts`).

Elsewhere: the fields of config.json (`int4_checkpoints`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from engine.models.errors import UnsupportedModel
from engine.models.modules import (
    Allocator,
    CheckpointTensor,
    Experts,
    ExpertsConfig,
    Linear,
    LinearConfig,
)
from engine.models.weight_formats.ignored import NOTHING, Ignored
from engine.models.weight_formats.int4_experts import USUAL, int4_experts
from engine.models.weight_formats.int4_forms import IN_WORD, Form, Int4Views, checkpoint_tensors
from engine.models.weight_formats.plain import BIAS_SCALE, PLAIN
from kernels.limits import INT4_SPAN
from storage.layouts.kv_layout import ITEM_BYTES

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.linear.fp8_rows import Fp8Rows
    from kernels.linear.int4_matrix import Int4Matrix
    from kernels.ops import Ops

GROUPS = (32, 64, 128)  # numbers of columns that may share a scale
_WORD_BYTES = 4  # bytes of an expert's scale and its zero point together


@dataclass(frozen=True, slots=True)
class Int4Linear(Linear):
    """A matrix `weight` with `bias` (out,) or None."""

    config: LinearConfig
    weight: Int4Matrix
    bias: Tensor | None
    form: Form
    first_has_bias: bool = False  # True: only the first rank loads or checks the bias

    def product(self, ops: Ops, x: Tensor | Fp8Rows) -> Tensor:
        compute = ops.linear_int4_split_k if self.config.in_parts else ops.linear_int4
        # Never fp8, because `takes_fp8` is None.
        return compute(cast("Tensor", x), self.weight, self.bias)

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self.weight.dequantised(dtype)

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """Yield integers, scales, zero points and biases."""
        has_bias = self.bias is not None or self.first_has_bias
        for views in self._views():
            yield from checkpoint_tensors(self.form, views, has_bias=has_bias)
        if self.bias is not None:
            of_rows = 0 if self.config.shards == "rows" else None
            yield from self.config.named("bias", self.bias, of_rows)

    def _views(self) -> Iterator[Int4Views]:
        weight, first, of_rows = self.weight, 0, self.config.shards == "rows"
        for name, rows, sections in self.config.in_sections:
            own = slice(first, first + rows)
            zeros = None if weight.zeros is None else weight.zeros[:, own]
            yield Int4Views(
                name,
                weight.values[own],
                weight.scales[:, own],
                zeros,
                weight.group,
                of_rows,
                sections if of_rows else (),
            )
            first += rows

    def fill(self, generator: torch.Generator) -> None:
        weight = self.weight
        weight.values.random_(-(1 << 15), 1 << 15, generator=generator)
        weight.scales.uniform_(0.5, 1.5, generator=generator)
        weight.scales.mul_(self.config.size_in**-0.5 / USUAL)
        if weight.zeros is not None:
            weight.zeros.random_(6, 10, generator=generator)
        if self.bias is not None:
            self.bias.normal_(0.0, BIAS_SCALE, generator=generator)


@dataclass(frozen=True, slots=True)
class Int4Format:
    """The format of 4-bit integers in one form of model checkpoint.

    Implements `WeightFormat`. Matrices in `ignored` are unquantised. `group` is the number of
    columns that share a scale. Without `has_zeros`, all zero points are 8.
    """

    name: str
    form: Form
    group: int
    has_zeros: bool
    ignored: Ignored = NOTHING

    def linear(self, config: LinearConfig, new: Allocator) -> Linear:
        """Allocate a matrix. Raises UnsupportedModel for sizes that are not served."""
        import torch

        from kernels.linear.int4_matrix import Int4Matrix

        if self.ignored.covers([name for name, _ in config.rows]):
            return PLAIN.linear(config, new)
        self._check(config)
        features, width = config.size_out, config.size_in
        groups = width // self.group
        values = new.empty(features, width // 4, dtype=torch.int16)
        zeros = new.empty(groups, features, dtype=torch.uint8) if self.has_zeros else None
        matrix = Int4Matrix(values, new.empty(groups, features), zeros)
        bias = new.empty(features) if config.bias else None
        is_first = new.group is None or new.group.rank == 0
        elsewhere = not is_first and config.shards == "columns"
        return Int4Linear(config, matrix, bias, self.form, elsewhere)

    def experts(self, config: ExpertsConfig, new: Allocator) -> Experts:
        """Allocate experts. Raises UnsupportedModel for biases or one tensor for all experts."""
        if self.ignored.covers(config.matrices(0)):
            return PLAIN.experts(config, new)
        if config.bias or config.packed:
            raise UnsupportedModel(
                f"quantization {self.name!r}: experts with biases, or packed in one tensor, are "
                "served in plain weights and mxfp4"
            )
        names = config.matrices(0)
        self._check_groups(names[0], config.size_in)
        self._check_groups(names[-1], config.size)
        return int4_experts(config, self.group, self.form, new, has_zeros=self.has_zeros)

    def num_bytes(self, config: LinearConfig, dtype: str) -> int:
        if self.ignored.covers([name for name, _ in config.rows]):
            return PLAIN.num_bytes(config, dtype)
        self._check(config)
        item_bytes, features = ITEM_BYTES[dtype], config.size_out
        if config.of_expert:
            spans = -(-config.size_in // INT4_SPAN)
            return features * spans * (INT4_SPAN // 2 + INT4_SPAN // self.group * _WORD_BYTES)
        of_groups = config.size_in // self.group * (item_bytes + self.has_zeros)
        return features * (config.size_in // 2 + of_groups + item_bytes * config.bias)

    def check_shard(self, config: LinearConfig) -> None:
        """Raise UnsupportedModel if dividing a matrix among ranks splits a word of the files."""
        if self.ignored.covers([name for name, _ in config.rows]):
            return
        self._check(config, of="a rank's part of ")
        sections = [(name, rows) for name, _, own in config.in_sections for rows in own]
        for name, rows in sections:
            if config.shards == "rows" and rows % IN_WORD:
                raise UnsupportedModel(
                    f"quantization_config: a rank's {rows} rows of {name} in int4: served are "
                    f"multiples of {IN_WORD}"
                )

    def _check(self, config: LinearConfig, of: str = "") -> None:
        name, width = f"{of}{config.rows[0][0]}", config.size_in
        if config.of_expert:
            self._check_groups(name, width)
        elif width % INT4_SPAN:
            raise UnsupportedModel(
                f"quantization_config: {name} has {width} columns: in int4 served are multiples "
                f"of {INT4_SPAN}"
            )

    def _check_groups(self, name: str, width: int) -> None:
        if width % self.group:
            raise UnsupportedModel(
                f"quantization_config: {name} has {width} columns: of experts in int4 served are "
                f"whole groups of {self.group}"
            )
