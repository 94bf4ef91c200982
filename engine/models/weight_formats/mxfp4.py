"""Experts in mxfp4, as gpt-oss ships them: written out as they are loaded, and plain afterwards.

    gate_up_proj_blocks (E, 2 I, H / 32, 16)    gate_up_proj_scales (E, 2 I, H / 32)
    down_proj_blocks (E, H, I / 32, 16)         down_proj_scales (E, H, I / 32)

Rows of gate and up are in turn. All other matrices are plain in such a checkpoint. Shards divide I,
by whole groups of 32.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from engine.models.errors import BadConfig, CheckpointError, UnsupportedModel
from engine.models.modules import Allocator, CheckpointTensor, Experts, ExpertsConfig, LinearConfig
from engine.models.weight_formats.plain import PLAIN, PlainExperts, PlainLinear, packed_biases

if TYPE_CHECKING:
    from torch import Tensor

FIELD = "quantization_config"
NAME = "mxfp4"
GROUP = 32  # columns that share a scale


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
        name, _ = config.rows[0]
        if config.of_expert and config.size_in % GROUP and not self._leaves(name.rsplit(".", 2)[0]):
            raise UnsupportedModel(
                f"{FIELD}: {name} of {config.size_in} columns is not whole groups of {GROUP}"
            )
        return PLAIN.num_bytes(config, dtype)

    def check_shard(self, config: LinearConfig) -> None:
        """As `WeightFormat.check_shard`: shards divide no group."""
        self.num_bytes(config, "float32")

    def _leaves(self, module: str) -> bool:
        """As `transformers` reads its list: what a name begins with, or what it ends with."""
        return any(re.match(one, module) or module.endswith(one) for one in self.plain)


MXFP4 = Mxfp4Format()


@dataclass(frozen=True, slots=True)
class Mxfp4Experts(PlainExperts):
    """Plain experts whose matrices are in mxfp4 in the checkpoint."""

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """Blocks and scales of all experts together, and their biases."""
        config, gate_up, down = self.config, self.gate_up.values, self.down.values
        in_turn = gate_up.view(-1, 2, config.size, config.size_in).transpose(1, 2)
        yield from _TwoParts(f"{config.prefix}gate_up_proj", in_turn, gate_up.shape, 1).tensors()
        yield from _TwoParts(f"{config.prefix}down_proj", down, down.shape, 2).tensors()
        yield from packed_biases(config, self.gate_up, self.down)


@dataclass(slots=True)
class _TwoParts:
    """The parts of one parameter, of which either may come first.

    Its matrices are of `shape` (E, out, in), and of the shape of `view` in its order of rows.
    """

    name: str
    view: Tensor
    shape: Sequence[int]
    shard_dim: int
    found: dict[str, Tensor] = field(default_factory=dict)

    def tensors(self) -> Iterator[CheckpointTensor]:
        from kernels.mxfp4 import shapes  # where torch is

        blocks, scales = shapes(*self.shape)
        yield self._part("blocks", self._blocks, blocks)
        yield self._part("scales", self._scales, scales)

    def _part(
        self, part: str, keep: Callable[[Tensor], Tensor | None], stored: tuple[int, ...]
    ) -> CheckpointTensor:
        return CheckpointTensor(f"{self.name}_{part}", self.view, self.shard_dim, keep, stored)

    def _blocks(self, value: Tensor) -> Tensor | None:
        return self._with("blocks", value)

    def _scales(self, value: Tensor) -> Tensor | None:
        return self._with("scales", value)

    def _with(self, part: str, value: Tensor) -> Tensor | None:
        """The parameter, once both are there; then they are let go."""
        import torch

        from kernels.mxfp4 import written_out

        if value.dtype != torch.uint8:
            raise CheckpointError(f"{self.name}_{part} is {value.dtype}, and no mxfp4")
        self.found[part] = value
        if len(self.found) < 2:
            return None
        blocks, scales = self.found.pop("blocks"), self.found.pop("scales")
        return written_out(blocks, scales, self.view.dtype).view(self.view.shape)
