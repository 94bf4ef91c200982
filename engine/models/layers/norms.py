"""The RMS norms: their configs as data, and their weights.

Torch is imported only for types, as in `modules`.

Elsewhere: the place of a norm in a layer (`layer`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from engine.models.modules import Allocator, CheckpointTensor, Module

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.collectives.peer_rows import PeerProduct
    from kernels.linear.fp8_rows import Fp8Rows, Scaling
    from kernels.ops import Ops


@dataclass(frozen=True, slots=True)
class RmsNormConfig:
    """The config of a layer's norms, of its heads' norms, or of the final norm.

    Llama rounds normed values to the model's dtype, then multiplies them by the weight. A norm with
    a single rounding multiplies in float32 (gpt-oss), and so does a norm of 1 + weight (Gemma).
    """

    eps: float
    one_plus: bool = False  # the model checkpoint stores weight - 1
    rounds_once: bool = False
    times: float = 1.0  # factor of the checkpoint's weights; only for norms that round once

    def build(self, name: str, size: int, new: Allocator) -> RmsNorm:
        """Build the norm whose weight has this name."""
        weight = self._weight(size, new)
        return RmsNorm(name, weight, self.eps, one_plus=self.one_plus, times=self.times)

    def _weight(self, size: int, new: Allocator) -> Tensor:
        import torch  # imported here, since sizes are read without torch

        # float32 makes 1 + weight exact enough, and kernels round only at the end.
        wide = self.one_plus or self.rounds_once
        return new.empty(size, dtype=torch.float32 if wide else None)


@dataclass(frozen=True, slots=True)
class RmsNorm(Module):
    """A norm over the last dimension.

    `weight` (H,) is in the model's dtype or float32. With `to_fp8` the norm quantises its result
    where possible. Only an fp8 product reads the quantised result.
    """

    name: str
    weight: Tensor
    eps: float
    to_fp8: Scaling | None = None
    one_plus: bool = False  # flag of `RmsNormConfig`; `weight` includes the 1
    times: float = 1.0  # factor of `RmsNormConfig`; `weight` includes the factor

    def norm(self, ops: Ops, x: Tensor) -> Tensor:
        """Norm x (T, H) -> (T, H)."""
        return ops.rms_norm(x, self.weight, self.eps)

    def add(
        self, ops: Ops, x: Tensor | PeerProduct, residual: Tensor
    ) -> tuple[Tensor | Fp8Rows, Tensor]:
        """Add x (whole, in parts or by rank) to residual -> (normed, sum), all (T, H)."""
        if self.to_fp8 is not None:
            return ops.add_rms_norm_fp8(x, residual, self.weight, self.eps, self.to_fp8)
        return ops.add_rms_norm(x, residual, self.weight, self.eps)

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the weight."""
        convert = _one_plus if self.one_plus else None
        if self.times != 1.0:
            convert = partial(_multiplied, by=self.times)
        yield CheckpointTensor(f"{self.name}.weight", self.weight, None, convert)

    def fill(self, generator: torch.Generator) -> None:  # noqa: ARG002
        self.weight.fill_(self.times)


def _one_plus(weight: Tensor) -> Tensor:
    return 1.0 + weight.float()


def _multiplied(weight: Tensor, by: float) -> Tensor:
    return weight.float() * by
