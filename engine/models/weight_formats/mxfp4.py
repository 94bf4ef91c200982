"""Experts in mxfp4, as gpt-oss ships them: written out as they are loaded, and plain afterwards.

    gate_up_proj_blocks (E, 2 I, H / 32, 16)    gate_up_proj_scales (E, 2 I, H / 32)
    down_proj_blocks (E, H, I / 32, 16)         down_proj_scales (E, H, I / 32)

Rows of gate and up are in turn. All other matrices are plain in such a checkpoint. There is no rule
for shards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from engine.models.errors import BadConfig, CheckpointError
from engine.models.modules import Allocator, CheckpointTensor, Experts, ExpertsConfig, LinearConfig
from engine.models.weight_formats.plain import PLAIN, PlainExperts, PlainLinear

if TYPE_CHECKING:
    from torch import Tensor

FIELD = "quantization_config"
NAME = "mxfp4"


class _Raw(msgspec.Struct):
    quant_method: str
    modules_to_not_convert: list[str] | None = None


def read_mxfp4(quantization: dict[str, Any]) -> Mxfp4Format:
    """Of `quant_method` mxfp4; raises BadConfig."""
    try:
        raw = msgspec.convert(quantization, _Raw)
    except msgspec.ValidationError as error:
        raise BadConfig(f"{FIELD}: {error}") from error
    for pattern in raw.modules_to_not_convert or ():
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadConfig(f"{FIELD}.modules_to_not_convert {pattern!r}: {error}") from error
    return Mxfp4Format(NAME, tuple(raw.modules_to_not_convert or ()))


@dataclass(frozen=True, slots=True)
class Mxfp4Format:
    """Implements `WeightFormat`. `plain`: patterns of modules that are plain in the files."""

    name: str = NAME
    plain: tuple[str, ...] = ()

    def linear(self, config: LinearConfig, new: Allocator) -> PlainLinear:
        """As `WeightFormat.linear`."""
        return PLAIN.linear(config, new)

    def experts(self, config: ExpertsConfig, new: Allocator) -> Experts:
        """As `WeightFormat.experts`, of experts that are one tensor in plain checkpoints."""
        made = PLAIN.experts(config, new)
        if self._leaves(config.prefix.removesuffix(".")):
            return made
        return Mxfp4Experts(made.config, made.gate_up, made.down)

    def num_bytes(self, config: LinearConfig, dtype: str) -> int:
        """As `WeightFormat.num_bytes`: what is kept is plain."""
        return PLAIN.num_bytes(config, dtype)

    def _leaves(self, module: str) -> bool:
        """As `transformers` reads its list: what a name begins with, or what it ends with."""
        return any(re.match(one, module) or module.endswith(one) for one in self.plain)


MXFP4 = Mxfp4Format()


@dataclass(frozen=True, slots=True)
class Mxfp4Experts(PlainExperts):
    """Plain experts whose matrices are in mxfp4 in the checkpoint."""

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """Blocks and scales of all experts together, and their biases."""
        for tensor in PlainExperts.checkpoint_tensors(self):
            if tensor.name.endswith("_bias"):
                yield tensor
            else:
                yield from _TwoParts(tensor).tensors()


@dataclass(slots=True)
class _TwoParts:
    """The parts of one parameter, of which either may come first."""

    whole: CheckpointTensor  # as plain checkpoints have it: inputs before outputs
    found: dict[str, Tensor] = field(default_factory=dict)

    def tensors(self) -> Iterator[CheckpointTensor]:
        from kernels.mxfp4 import shapes  # where torch is

        assert self.whole.stored_shape is not None
        experts, inputs, outputs = self.whole.stored_shape
        blocks, scales = shapes(experts, outputs, inputs)
        for part, keep, shape in (
            ("blocks", self._blocks, blocks),
            ("scales", self._scales, scales),
        ):
            name = f"{self.whole.name}_{part}"
            yield CheckpointTensor(name, self.whole.view, None, keep, shape)

    def _blocks(self, value: Tensor) -> Tensor | None:
        return self._with("blocks", value)

    def _scales(self, value: Tensor) -> Tensor | None:
        return self._with("scales", value)

    def _with(self, part: str, value: Tensor) -> Tensor | None:
        """The parameter, once both are there; then they are let go."""
        import torch

        from kernels.mxfp4 import written_out

        if value.dtype != torch.uint8:
            raise CheckpointError(f"{self.whole.name}_{part} is {value.dtype}, and no mxfp4")
        self.found[part] = value
        if len(self.found) < 2:
            return None
        blocks, scales = self.found.pop("blocks"), self.found.pop("scales")
        outputs_first = written_out(blocks, scales, self.whole.view.dtype)
        assert self.whole.convert is not None
        return self.whole.convert(outputs_first.transpose(1, 2))
