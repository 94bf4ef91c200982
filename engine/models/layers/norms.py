"""The RMS norms: their configs and their weights.

At import, torch is needed only for types, as in `modules`.

Elsewhere: the positions of norms in a layer (`layer`).
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

    Llama rounds normed values to the model's dtype, then multiplies them by the weight. With
    `rounds_once` (gpt-oss) or `one_plus` (Gemma), values are multiplied in float32, then rounded.
    """

    eps: float
    one_plus: bool = False  # True: the model checkpoint stores weight - 1
    rounds_once: bool = False
    times: float = 1.0  # factor on the checkpoint's weights; only with `rounds_once`

    def build(self, name: str, size: int, new: Allocator) -> RmsNorm:
        """Build a norm of `size` values. `name` is the name of its weight."""
        weight = self._weight(size, new)
        return RmsNorm(name, weight, self.eps, one_plus=self.one_plus, times=self.times)

    def _weight(self, size: int, new: Allocator) -> Tensor:
        import torch  # imported here, so that configs can be read without torch

        # In float32, 1 + weight is exact enough, and kernels round only the final result.
        wide = self.one_plus or self.rounds_once
        return new.empty(size, dtype=torch.float32 if wide else None)


@dataclass(frozen=True, slots=True)
class RmsNorm(Module):
    """A norm over the last dimension.

    `weight` (H,) is in the model's dtype or float32. With `to_fp8`, `add` quantises its result for
    an fp8 product.
    """

    name: str
    weight: Tensor
    eps: float
    to_fp8: Scaling | None = None
    one_plus: bool = False  # as in `RmsNormConfig`; `weight` already includes the 1
    times: float = 1.0  # as in `RmsNormConfig`; `weight` already includes the factor

    def norm(self, ops: Ops, x: Tensor) -> Tensor:
        """Return the norm of x (T, H) -> (T, H)."""
        return ops.rms_norm(x, self.weight, self.eps)

    def add(
        self, ops: Ops, x: Tensor | PeerProduct, residual: Tensor
    ) -> tuple[Tensor | Fp8Rows, Tensor]:
        """Add `x` to `residual`. Return the norm of the sum, and the sum, both (T, H).

        `x` is (T, H), in parts, or the products of several ranks.
        """
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
