"""A weight format in one file: 8-bit integers, with a scale for each output channel.

    NAME.weight (out, in) int8    NAME.weight_scale (out,)    NAME.bias (out,), if there is one

Its product is plain PyTorch. `SERVED` registers the format under its `quant_method`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.modules import (
    Allocator,
    CheckpointTensor,
    Experts,
    ExpertsConfig,
    Linear,
    LinearConfig,
)
from engine.models.served import registry
from engine.models.weight_formats.plain import PLAIN
from kernels.linear.fp8_rows import Fp8Rows
from kernels.ops import Ops
from storage.layouts.kv_layout import ITEM_BYTES

NAME = "int8_by_channel"


@dataclass(frozen=True, slots=True)
class Int8Linear(Linear):
    config: LinearConfig
    weight: Tensor  # (out, in) int8
    scale: Tensor  # (out,)
    bias: Tensor | None

    def product(self, ops: Ops, x: Tensor | Fp8Rows) -> Tensor:
        assert isinstance(x, Tensor)
        scaled = F.linear(x, self.weight.to(x.dtype)) * self.scale
        return scaled if self.bias is None else scaled + self.bias

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self.weight.to(dtype) * self.scale[:, None]

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        by_rows = self.config.shards == "rows"
        of_rows = 0 if by_rows else None
        yield from self.config.named("weight", self.weight, 0 if by_rows else 1)
        yield from self.config.named("weight_scale", self.scale, of_rows)
        if self.bias is not None:
            yield from self.config.named("bias", self.bias, of_rows)

    def fill(self, generator: torch.Generator) -> None:
        self.weight.random_(-127, 128, generator=generator)
        self.scale.fill_(self.config.size_in**-0.5 / 73)
        if self.bias is not None:
            self.bias.zero_()


@dataclass(frozen=True, slots=True)
class Int8ByChannel:
    name: str = NAME

    def linear(self, config: LinearConfig, new: Allocator) -> Int8Linear:
        weight = new.empty(config.size_out, config.size_in, dtype=torch.int8)
        bias = new.empty(config.size_out) if config.bias else None
        return Int8Linear(config, weight, new.empty(config.size_out), bias)

    def experts(self, config: ExpertsConfig, new: Allocator) -> Experts:
        return PLAIN.experts(config, new)

    def check_shard(self, config: LinearConfig) -> None:
        return PLAIN.check_shard(config)

    def num_bytes(self, config: LinearConfig, dtype: str) -> int:
        scale_and_bias = ITEM_BYTES[dtype] * (1 + config.bias)
        return config.size_out * (config.size_in + scale_and_bias)


def read_format(quantization: dict[str, Any]) -> Int8ByChannel:
    return Int8ByChannel(quantization["quant_method"])


SERVED = replace(
    registry.SERVED,
    formats={NAME: read_format},
    planned_formats=(*registry.SERVED.planned_formats, Int8ByChannel()),
)


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest int8 numbers, and the scale of each row."""
    scale = weight.abs().amax(1) / 127
    return (weight / scale[:, None]).round().to(torch.int8), scale
