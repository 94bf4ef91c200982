"""The MLP of a layer: its config, and its computation.

    down(act(gate(x)) * up(x))    or down(relu(up(x))^2), without a gate

At import, torch is needed only for types, as in `modules`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.models.modules import Allocator, Linear, LinearConfig, side_by_side
from kernels.norms.gate import SILU, Gate

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.linear.fp8_rows import Fp8Rows, Scaling
    from kernels.ops import Ops


@dataclass(frozen=True, slots=True)
class MlpConfig:
    """The config of an MLP of inner width `size`, with SwiGLU, another gate or no gate."""

    size: int
    bias: bool = False
    place: str = "mlp."
    gate: Gate = SILU

    def num_weights(self, hidden: int) -> int:
        """Count the weights used per token."""
        return (self.gate.factors + 1) * hidden * self.size

    def gate_up(self, prefix: str, hidden: int) -> LinearConfig:
        """Return the gate (if any) and up projections as one matrix, not computed in parts."""
        names = ("gate_proj", "up_proj")[-self.gate.factors :]
        return side_by_side(
            prefix, dict.fromkeys(names, self.size), hidden, bias=self.bias, in_parts=False
        )

    def down(self, prefix: str, hidden: int, *, in_parts: bool = True) -> LinearConfig:
        """Return the down projection. For `in_parts`, see `LinearConfig`."""
        rows = ((f"{prefix}down_proj", hidden),)
        return LinearConfig(rows, self.size, self.bias, "columns", in_parts)

    def matrices(self, prefix: str, hidden: int) -> Iterator[LinearConfig]:
        """Yield all matrices of the MLP."""
        yield self.gate_up(prefix, hidden)
        yield self.down(prefix, hidden)

    def build(self, prefix: str, hidden: int, new: Allocator, *, in_parts: bool = True) -> GatedMlp:
        """Build the MLP whose matrices' names begin with `prefix`."""
        gate_up = self.gate_up(prefix, hidden)
        down = self.down(prefix, hidden, in_parts=in_parts)
        return GatedMlp(new.linear(gate_up), new.linear(down), self.gate)


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """An MLP with its tensors."""

    gate_up: Linear
    down: Linear
    gate: Gate

    @property
    def takes_fp8(self) -> Scaling | None:
        return self.gate_up.takes_fp8

    def product(self, ops: Ops, x: Tensor | Fp8Rows) -> Tensor:
        """Compute x (T, H) -> (T, H), complete or in parts."""
        gate_up, by = self.gate_up.product(ops, x), self.down.takes_fp8
        if by is None:
            return self.down.product(ops, ops.gate_mul(gate_up, self.gate))
        return self.down.product(ops, ops.gate_mul_fp8(gate_up, self.gate, by))
