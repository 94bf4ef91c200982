"""The mixture of experts of a layer: its config, and its computation.

    x -> router -> the k best experts -> weighted sum of their MLPs -> + x -> shared expert, if any,
    weighted by a gate in some models -> +

Experts may work on smaller vectors (latents), between two projections that they share. The router
is unquantised in every weight format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from engine.models.layers.mlp import GatedMlp, MlpConfig
from engine.models.layers.vectors import Vector, build_vector
from engine.models.modules import Allocator, Experts, ExpertsConfig, Linear, LinearConfig
from engine.models.weight_formats.plain import PLAIN
from kernels.experts.scoring import SOFTMAX, Scoring
from kernels.norms.gate import SILU, Gate

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.linear.fp8_rows import Fp8Rows, Scaling
    from kernels.ops import Ops

# Names of the projections before and after the experts.
LATENTS = ("fc1_latent_proj", "fc2_latent_proj")


@dataclass(frozen=True, slots=True)
class SharedExpertConfig:
    """The config of the MLP that every token uses.

    If `weighted`, the MLP's output is multiplied by the sigmoid of a gate.
    """

    mlp: MlpConfig
    weighted: bool = True

    def num_weights(self, hidden: int) -> int:
        """Count the weights used per token."""
        return self.weighted * hidden + self.mlp.num_weights(hidden)

    def matrices(self, prefix: str, hidden: int) -> Iterator[LinearConfig]:
        """Yield the shared expert's matrices. `prefix` is the prefix of the mixture's names."""
        if self.weighted:
            yield self._weight(prefix, hidden)
        yield from self.mlp.matrices(prefix + self.mlp.place, hidden)

    def build(self, prefix: str, hidden: int, new: Allocator) -> SharedExpert:
        """Build the shared expert of a mixture whose names begin with `prefix`."""
        weight = PLAIN.linear(self._weight(prefix, hidden), new) if self.weighted else None
        mlp = self.mlp.build(prefix + self.mlp.place, hidden, new, in_parts=False)
        return SharedExpert(weight, mlp)

    def _weight(self, prefix: str, hidden: int) -> LinearConfig:
        rows = ((f"{prefix}shared_expert_gate", 1),)
        return LinearConfig(rows, hidden, False, "rows", in_parts=False, plain=True)


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """The shared expert's MLP, and the gate (1, H) that computes its weight, if it is weighted."""

    weight: Linear | None
    mlp: GatedMlp

    def add_to(self, product: Tensor, ops: Ops, x: Tensor) -> Tensor:
        """Add the output for `x` (T, H) to `product` (T, H), or append it to a product's parts."""
        import torch  # imported here, so that configs can be read without torch

        own = self.mlp.product(ops, x)
        if self.weight is not None:
            own = own * self.weight.product(ops, x).sigmoid()
        if product.dim() == 2:
            return product + own
        return torch.cat((product, own.to(product.dtype)[None]))


@dataclass(frozen=True, slots=True)
class MixtureConfig:
    """A mixture of `num_experts` MLPs with `size` inner columns. A token uses `top_k` of them."""

    size: int
    num_experts: int
    top_k: int
    renormalise: bool  # True: the chosen experts' weights are scaled to a sum of 1
    place: str = "mlp."
    names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")  # see `ExpertsConfig`
    gate: Gate = SILU
    bias: bool = False
    router: str = "gate"
    experts: str = "experts."
    router_bias: bool = False
    packed: bool = False  # True: one tensor for all experts, as in `ExpertsConfig`
    halves: bool = False
    # True: the weight of an expert multiplies its input, not its output.
    weighs_inputs: bool = False
    scoring: Scoring = SOFTMAX
    # Name, after `place`, of a bias that affects only the choice; None: no bias.
    correction: str | None = None
    shared: SharedExpertConfig | None = None  # an additional expert that every token uses
    # Name, after `place`, of factors on the weights; None: no factors.
    expert_scales: str | None = None
    latent: int | None = None  # width of the experts' inputs and outputs; None: the hidden size

    def num_weights(self, hidden: int) -> int:
        """Count the weights used per token."""
        shared = 0 if self.shared is None else self.shared.num_weights(hidden)
        width, latents = self.latent or hidden, 2 * hidden * (self.latent or 0)
        experts = (self.gate.factors + 1) * self.top_k * self.size * width
        return hidden * self.num_experts + latents + experts + shared

    def matrices(self, prefix: str, hidden: int) -> Iterator[LinearConfig]:
        """Yield all matrices of the mixture, each expert's matrices separately."""
        yield self._router(prefix, hidden)
        experts = self._experts(prefix, hidden)
        for expert in range(self.num_experts):
            *inner, down = experts.matrices(expert)
            rows = tuple((name, self.size) for name in inner)
            width, back = experts.size_in, ((down, experts.size_in),)
            yield LinearConfig(rows, width, self.bias, "rows", of_expert=True)
            yield LinearConfig(back, self.size, self.bias, "columns", of_expert=True)
        if self.latent is not None:
            yield from self._latents(prefix, hidden, self.latent)
        if self.shared is not None:
            yield from self.shared.matrices(prefix, hidden)

    def build(self, prefix: str, hidden: int, new: Allocator) -> Mixture:
        """Build the mixture whose matrices' names begin with `prefix`."""
        router = PLAIN.linear(self._router(prefix, hidden), new)
        experts = new.experts(self._experts(prefix, hidden))
        shared = None if self.shared is None else self.shared.build(prefix, hidden, new)
        name, size = self.correction, self.num_experts
        bias = None if name is None else build_vector(prefix + name, size, new, low=0.0, high=0.0)
        scaled = self.expert_scales
        scales = None if scaled is None else build_vector(prefix + scaled, size, new)
        latents = None
        if self.latent is not None:
            enter, leave = self._latents(prefix, hidden, self.latent)
            latents = Latents(new.linear(enter), new.linear(leave))
        return Mixture(self, router, experts, shared, bias, scales, latents)

    def _router(self, prefix: str, hidden: int) -> LinearConfig:
        rows = ((prefix + self.router, self.num_experts),)
        return LinearConfig(rows, hidden, self.router_bias, "rows", in_parts=False, plain=True)

    def _latents(self, prefix: str, hidden: int, latent: int) -> tuple[LinearConfig, LinearConfig]:
        """Return the projections before and after the experts. Every rank has all rows of both."""
        enter, leave = (prefix + name for name in LATENTS)
        return (
            LinearConfig(((enter, latent),), hidden, False, "rows", in_parts=False),
            LinearConfig(((leave, hidden),), latent, False, "rows", in_parts=False),
        )

    def _experts(self, prefix: str, hidden: int) -> ExpertsConfig:
        return ExpertsConfig(
            prefix + self.experts,
            self.names,
            self.num_experts,
            self.latent or hidden,
            self.size,
            self.gate,
            self.bias,
            self.packed,
            self.halves,
        )


@dataclass(frozen=True, slots=True)
class Latents:
    """The projections before (L, H) and after (H, L) the experts."""

    enter: Linear
    leave: Linear


@dataclass(frozen=True, slots=True)
class Mixture:
    """A mixture with its tensors."""

    config: MixtureConfig
    router: Linear
    experts: Experts
    shared: SharedExpert | None = None
    correction: Vector | None = None
    scales: Vector | None = None
    latents: Latents | None = None

    @property
    def takes_fp8(self) -> Scaling | None:
        """None, because the router reads the same input, and is unquantised."""
        return None

    def product(self, ops: Ops, x: Tensor | Fp8Rows) -> Tensor:
        """Compute x (T, H) -> (T, H), complete or in parts."""
        plain = cast("Tensor", x)  # never fp8, because `takes_fp8` is None
        product = self.routed(ops, plain, plain)
        return product if self.shared is None else self.shared.add_to(product, ops, plain)

    def routed(self, ops: Ops, x: Tensor, routed_by: Tensor) -> Tensor:
        """Compute x (T, H) -> (T, H) by the experts that the router chooses for `routed_by` (T, H).

        The result is complete or in parts, and excludes the shared expert.
        """
        logits = self.router.product(ops, routed_by)
        config, bias = self.config, None if self.correction is None else self.correction.values
        factors = None if self.scales is None else self.scales.values
        routed = ops.route(logits, config.top_k, config.renormalise, config.scoring, bias, factors)
        if config.weighs_inputs:
            x = x * routed.weights.to(x.dtype)
            routed = replace(routed, weights=routed.weights.new_ones(routed.weights.shape))
        if self.latents is None:
            return self.experts.product(ops, x, routed)
        from kernels.linear.split_k import whole  # imported here, because it imports torch

        product = self.experts.product(ops, self.latents.enter.product(ops, x), routed)
        return self.latents.leave.product(ops, whole(product, x.dtype))
