"""The vectors and convolutions of a layer, which are unquantised in every weight format.

Torch is imported only for types, as in `modules`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.models.modules import Allocator, CheckpointTensor, Module

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Vector(Module):
    """A number for each head or channel, (N,), in the dtype that `build_vector` chose.

    Shards divide the numbers with their heads or channels. Dummy numbers are drawn evenly from
    `low` up to `high`.
    """

    name: str
    values: Tensor
    low: float
    high: float

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the vector as one tensor."""
        yield CheckpointTensor(self.name, self.values, 0)

    def fill(self, generator: torch.Generator) -> None:
        self.values.uniform_(self.low, self.high, generator=generator)


def build_vector(
    name: str, size: int, new: Allocator, *, low: float = 1.0, high: float = 1.0, wide: bool = True
) -> Vector:
    """Build a vector in float32 if it is `wide`, else in the model's dtype."""
    import torch  # imported here, since sizes are read without torch

    values = new.empty(size, dtype=torch.float32 if wide else None)
    return Vector(name, values, low, high)


@dataclass(frozen=True, slots=True)
class Conv(Module):
    """A causal convolution of each channel by itself: `weight` (C, W), `bias` (C,) or None.

    `sections` are the sections of the channels, as in `CheckpointTensor`.
    """

    name: str
    weight: Tensor
    bias: Tensor | None
    sections: tuple[int, ...]

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the kernels, which model checkpoints store as (C, 1, W), and biases."""
        channels, width = self.weight.shape
        stored = channels, 1, width
        yield CheckpointTensor(
            f"{self.name}.weight", self.weight, 0, _squeezed, stored, sections=self.sections
        )
        if self.bias is not None:
            yield CheckpointTensor(f"{self.name}.bias", self.bias, 0, sections=self.sections)

    def fill(self, generator: torch.Generator) -> None:
        self.weight.normal_(0.0, self.weight.shape[1] ** -0.5, generator=generator)
        if self.bias is not None:
            self.bias.zero_()


def build_conv(
    name: str, sections: tuple[int, ...], width: int, new: Allocator, *, bias: bool
) -> Conv:
    """Build a convolution of the channels of all sections, in the model's dtype."""
    channels = sum(sections)
    weight = new.empty(channels, width)
    return Conv(name, weight, new.empty(channels) if bias else None, sections)


def _squeezed(weight: Tensor) -> Tensor:
    return weight.squeeze(1)
