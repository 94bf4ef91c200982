"""The vectors, convolutions and sinks of a layer, which are unquantised in every weight format.

At import, torch is needed only for types, as in `modules`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.models.modules import (
    Allocator,
    CheckpointTensor,
    Module,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Vector(Module):
    """A vector (N,) with a number for each head or channel. `build_vector` chooses its dtype.

    A shard has the numbers of its heads or channels. Dummy values are uniform between `low` and
    `high`.
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
    import torch  # imported here, so that configs can be read without torch

    values = new.empty(size, dtype=torch.float32 if wide else None)
    return Vector(name, values, low, high)


@dataclass(frozen=True, slots=True)
class Conv(Module):
    """A causal convolution of each channel separately: `weight` (C, W), `bias` (C,) or None.

    The channels are divided into `sections`, as in `CheckpointTensor`.
    """

    name: str
    weight: Tensor
    bias: Tensor | None
    sections: tuple[int, ...]

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the weights, which model checkpoints store as (C, 1, W), and the biases."""
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
    """Build a convolution, in the model's dtype. Its channels are those of all sections."""
    channels = sum(sections)
    weight = new.empty(channels, width)
    return Conv(name, weight, new.empty(channels) if bias else None, sections)


def _squeezed(weight: Tensor) -> Tensor:
    return weight.squeeze(1)


@dataclass(frozen=True, slots=True)
class Sinks(Module):
    """The additional softmax logits of query heads (Hq,), in the model's dtype."""

    name: str
    logits: Tensor

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the logits."""
        yield CheckpointTensor(self.name, self.logits, 0)

    def fill(self, generator: torch.Generator) -> None:
        self.logits.normal_(generator=generator)
