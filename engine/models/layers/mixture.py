"""A layer's mixture of experts: its config as data, and its computation.

    x -> router -> the k best experts -> their MLPs, weighted -> +

The router is plain in every weight format. Knows: names in checkpoints. Does not know: config.json
(`architectures`), or which kernels do the work (`Ops`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from engine.models.modules import Allocator, Experts, ExpertsConfig, Linear, LinearConfig
from engine.models.weight_formats.plain import PLAIN
from kernels.norms.gate import SILU, Gate

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.linear.fp8_rows import Fp8Rows, Scaling
    from kernels.ops import Ops


@dataclass(frozen=True, slots=True)
class MixtureConfig:
    """Mixture of `num_experts` MLPs of `size` columns, of which a token uses `top_k`."""

    size: int
    num_experts: int
    top_k: int
    renormalise: bool  # the chosen experts' weights add up to 1: a softmax over these experts
    place: str = "mlp."  # prefix of its matrices' names in a layer
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    gate: Gate = SILU
    bias: bool = False  # biases of the experts
    router: str = "gate"  # the router's name, after `place`
    router_bias: bool = False
    packed: bool = False  # stacked experts, as in `ExpertsConfig`

    def num_weights(self, hidden: int) -> int:
        """Count the weights used per token."""
        return hidden * (self.num_experts + 3 * self.top_k * self.size)

    def matrices(self, prefix: str, hidden: int) -> Iterator[LinearConfig]:
        """Yield all matrices of the mixture, each expert's matrices separately."""
        yield self._router(prefix, hidden)
        experts = self._experts(prefix, hidden)
        for expert in range(self.num_experts):
            gate, up, down = experts.matrices(expert)
            both = (gate, self.size), (up, self.size)
            yield LinearConfig(both, hidden, self.bias, "rows", of_expert=True)
            yield LinearConfig(((down, hidden),), self.size, self.bias, "columns", of_expert=True)

    def build(self, prefix: str, hidden: int, new: Allocator) -> Mixture:
        """Build the mixture whose matrices' names begin with `prefix`."""
        router = PLAIN.linear(self._router(prefix, hidden), new)
        return Mixture(self, router, new.experts(self._experts(prefix, hidden)))

    def _router(self, prefix: str, hidden: int) -> LinearConfig:
        rows = ((prefix + self.router, self.num_experts),)
        return LinearConfig(rows, hidden, self.router_bias, "rows", in_parts=False, plain=True)

    def _experts(self, prefix: str, hidden: int) -> ExpertsConfig:
        return ExpertsConfig(
            f"{prefix}experts.",
            self.names,
            self.num_experts,
            hidden,
            self.size,
            self.gate,
            self.bias,
            self.packed,
        )


@dataclass(frozen=True, slots=True)
class Mixture:
    """A mixture with its tensors."""

    config: MixtureConfig
    router: Linear
    experts: Experts

    @property
    def takes_fp8(self) -> Scaling | None:
        """None, since the router reads the input as well."""
        return None

    def product(self, ops: Ops, x: Tensor | Fp8Rows) -> Tensor:
        """Compute x (T, H) -> (T, H), whole or in parts."""
        logits = self.router.product(ops, x)
        routed = ops.route(logits, self.config.top_k, self.config.renormalise)
        return self.experts.product(ops, cast("Tensor", x), routed)  # `takes_fp8` is None
