"""The layers of Gemma 4, which have norms before and after attention and MLP.

    x -> norm -> attention -> norm -> + -> norm -> MLP -> norm -> + x
    x -> norm -> MLP -> norm -> +                               with a mixture as well
    x -> norm -> experts -> norm -> + -> norm -> + x            (a norm of its own for the router)
    x -> gate -> times the layer's input -> projection -> norm -> + x       with an input

At the end, x is multiplied by the layer's scalar.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, cast

from engine.models.layers.layer import DecoderLayer, LayerConfig
from engine.models.layers.mixer import Entered, KvMemory, LayerStep
from engine.models.layers.mixture import Mixture, MixtureConfig
from engine.models.layers.mlp import GatedMlp, MlpConfig
from engine.models.layers.norms import RmsNorm
from engine.models.layers.sandwich import SandwichLayer
from engine.models.layers.vectors import Vector, build_vector
from engine.models.modules import Allocator, Linear, LinearConfig

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.linear.fp8_rows import Fp8Rows
    from kernels.ops import Ops


@dataclass(frozen=True, slots=True)
class Gemma4LayerConfig(LayerConfig):
    """The config of a layer. If a layer has an MLP and a mixture, the MLP is the shared expert."""

    mlp: MlpConfig | MixtureConfig
    own_input: int = 0  # size of the layer's additional input; 0 without one
    before_mlp: ClassVar[str] = "pre_feedforward_layernorm"
    adds_parts: ClassVar[bool] = False

    @property
    def num_weights(self) -> int:
        used = self.mixer.num_weights(self.hidden_size) + self.mlp.num_weights(self.hidden_size)
        return used + 2 * self.hidden_size * self.own_input

    def matrices(self, index: int) -> Iterator[LinearConfig]:
        yield from LayerConfig.matrices(self, index)
        if self.own_input:
            yield from self._of_input(f"model.layers.{index}.")

    def _of_input(self, prefix: str) -> tuple[LinearConfig, LinearConfig]:
        """Return gate and projection of the additional input. Every rank has both completely."""
        hidden, size = self.hidden_size, self.own_input
        gate = LinearConfig(
            ((f"{prefix}per_layer_input_gate", size),), hidden, False, "rows", in_parts=False
        )
        projection = LinearConfig(
            ((f"{prefix}per_layer_projection", hidden),), size, False, "rows", in_parts=False
        )
        return gate, projection

    def build(self, index: int, new: Allocator) -> Gemma4Layer:
        plain = LayerConfig.build(self, index, new)
        prefix, hidden = f"model.layers.{index}.", self.hidden_size

        def norm(name: str) -> RmsNorm:
            return self.norm.build(prefix + name, hidden, new)

        return Gemma4Layer(
            **{field.name: getattr(plain, field.name) for field in fields(DecoderLayer)},
            attention_norm=norm("post_attention_layernorm"),
            mlp_norm=norm("post_feedforward_layernorm"),
            beside=self._build_beside(prefix, new),
            own=self._build_own(prefix, new),
            scalar=build_vector(f"{prefix}layer_scalar", 1, new, wide=False),
        )

    def build_mlp(self, prefix: str, new: Allocator) -> GatedMlp | Mixture:
        """Build the MLP or mixture. The product of a dense MLP is not computed in parts."""
        place, hidden = prefix + self.mlp.place, self.hidden_size
        if isinstance(self.mlp, MixtureConfig):
            return self.mlp.build(place, hidden, new)
        return self.mlp.build(place, hidden, new, in_parts=False)

    def _build_beside(self, prefix: str, new: Allocator) -> BesideNorms | None:
        if not isinstance(self.mlp, MixtureConfig):
            return None
        hidden = self.hidden_size
        router = replace(self.norm, times=hidden**-0.5)
        return BesideNorms(
            after_mlp=self.norm.build(f"{prefix}post_feedforward_layernorm_1", hidden, new),
            router=router.build(f"{prefix}router.norm", hidden, new),
            before_experts=self.norm.build(f"{prefix}pre_feedforward_layernorm_2", hidden, new),
            after_experts=self.norm.build(f"{prefix}post_feedforward_layernorm_2", hidden, new),
        )

    def _build_own(self, prefix: str, new: Allocator) -> OwnInput | None:
        if not self.own_input:
            return None
        gate, projection = self._of_input(prefix)
        norm = self.norm.build(f"{prefix}post_per_layer_input_norm", self.hidden_size, new)
        return OwnInput(new.linear(gate), new.linear(projection), norm)


@dataclass(frozen=True, slots=True)
class BesideNorms:
    """The additional norms of a layer that has both an MLP and a mixture."""

    after_mlp: RmsNorm
    router: RmsNorm
    before_experts: RmsNorm
    after_experts: RmsNorm


@dataclass(frozen=True, slots=True)
class OwnInput:
    """The tensors for a layer's additional input of P numbers: gate (P, H), projection (H, P)."""

    gate: Linear
    projection: Linear
    norm: RmsNorm

    def product(self, ops: Ops, x: Tensor, own_input: Tensor) -> Tensor:
        """Compute the term (T, H) that is added to `x` (T, H), from the additional input (T, P)."""
        # Imported here, so that configs can be read without torch.
        from torch.nn.functional import gelu

        gated = gelu(self.gate.product(ops, x), approximate="tanh") * own_input
        return self.norm.norm(ops, self.projection.product(ops, gated))


@dataclass(frozen=True, slots=True)
class Gemma4Layer(SandwichLayer):
    """A layer of `Gemma4LayerConfig` with its tensors."""

    beside: BesideNorms | None
    own: OwnInput | None
    scalar: Vector  # (1,)

    def finish(
        self, step: LayerStep, entered: Entered, residual: Tensor, outputs: Tensor | None
    ) -> tuple[None, Tensor]:
        ops, memory = step.ops, step.memory
        normed, residual = self.mixed(step, entered, residual, outputs)
        added = self.mlp_norm.norm(ops, self._mlps(ops, normed, residual))
        if self.own is not None:
            assert isinstance(memory, KvMemory)
            assert memory.own_input is not None, "the model has inputs of its layers"
            own_input = memory.own_input
            if outputs is not None:
                own_input = own_input.index_select(0, outputs)
            residual = residual + added
            added = self.own.product(ops, residual, own_input)
        return None, (residual + added).mul_(self.scalar.values)

    def _mlps(self, ops: Ops, normed: Tensor | Fp8Rows, residual: Tensor) -> Tensor:
        """Return the MLP of `normed` (T, H), plus the mixture of the residual if there is one.

        The result (T, H) is not in parts, and is summed over all ranks.
        """
        if not isinstance(self.mlp, Mixture):
            return self._whole(self.mlp.product(ops, normed), residual)
        assert self.beside is not None, "a mixture has norms of its own"
        assert self.mlp.shared is not None, "it stands beside an MLP"
        norms = self.beside
        dense = self._whole(self.mlp.shared.mlp.product(ops, normed), residual)
        routed_by = norms.router.norm(ops, residual)
        routed = self.mlp.routed(ops, norms.before_experts.norm(ops, residual), routed_by)
        of_experts = norms.after_experts.norm(ops, self._whole(routed, residual))
        return norms.after_mlp.norm(ops, dense) + of_experts

    def _whole(self, product: Tensor, residual: Tensor) -> Tensor:
        if product.dim() == 3:
            product = product.sum(0).to(residual.dtype)
        return cast("Tensor", self.of_all_ranks(product, residual))
