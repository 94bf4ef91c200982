"""The layers with norms after attention and MLP. Some also have norms before them.

    x -> norm -> QKV -> rope, KV -> attention -> output -> norm -> + -> norm -> MLP -> norm -> + x
    x ->         QKV -> rope, KV -> attention -> output -> norm -> + ->         MLP -> norm -> + x

Gemma 2 and 3 have the first form. OLMo 2 and 3 and EXAONE 4 have the second form. A product is
normed before it is added to the residual, so it cannot be computed in parts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, cast

from engine.models.layers.layer import DecoderLayer, LayerConfig
from engine.models.layers.mixer import Entered, LayerStep
from engine.models.layers.mixture import Mixture
from engine.models.layers.mlp import GatedMlp, MlpConfig
from engine.models.layers.norms import RmsNorm
from engine.models.modules import Allocator

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.collectives.peer_rows import PeerProduct
    from kernels.linear.fp8_rows import Fp8Rows


@dataclass(frozen=True, slots=True)
class SandwichLayerConfig(LayerConfig):
    """The config of a layer with norms before and after attention and MLP. The MLP is dense."""

    mlp: MlpConfig
    before_mlp: ClassVar[str] = "pre_feedforward_layernorm"
    adds_parts: ClassVar[bool] = False

    def build(self, index: int, new: Allocator) -> SandwichLayer:
        plain = LayerConfig.build(self, index, new)
        prefix, size = f"model.layers.{index}.", self.hidden_size
        return SandwichLayer(
            **{field.name: getattr(plain, field.name) for field in fields(DecoderLayer)},
            attention_norm=self.norm.build(f"{prefix}post_attention_layernorm", size, new),
            mlp_norm=self.norm.build(f"{prefix}post_feedforward_layernorm", size, new),
        )

    def build_mlp(self, prefix: str, new: Allocator) -> GatedMlp:
        """Build the MLP. Its product is not computed in parts."""
        return self.mlp.build(prefix + self.mlp.place, self.hidden_size, new, in_parts=False)


@dataclass(frozen=True, slots=True)
class SandwichLayer(DecoderLayer):
    """A layer of `SandwichLayerConfig` with its tensors."""

    post_norm: RmsNorm
    mlp: GatedMlp | Mixture
    attention_norm: RmsNorm
    mlp_norm: RmsNorm

    def finish(
        self, step: LayerStep, entered: Entered, residual: Tensor, outputs: Tensor | None
    ) -> tuple[Tensor | None, Tensor]:
        normed, residual = self.mixed(step, entered, residual, outputs)
        product = self.of_all_ranks(self.mlp.product(step.ops, normed), residual)
        return self.mlp_norm.norm(step.ops, cast("Tensor", product)), residual

    def mixed(
        self, step: LayerStep, entered: Entered, residual: Tensor, outputs: Tensor | None
    ) -> tuple[Tensor | Fp8Rows, Tensor]:
        """Compute the MLP's normed input and the residual, from the same arguments as `finish`."""
        mixed, residual = self.mix(step, entered, residual, outputs)
        # `mixed` is always one tensor, because products are not in parts.
        mixed = self.attention_norm.norm(step.ops, cast("Tensor", mixed))
        return self.post_norm.add(step.ops, mixed, residual)


@dataclass(frozen=True, slots=True)
class PostNormLayerConfig(LayerConfig):
    """The config of a layer with norms only after attention and MLP. The MLP is dense."""

    mlp: MlpConfig
    adds_parts: ClassVar[bool] = False

    def build(self, index: int, new: Allocator) -> PostNormLayer:
        prefix, hidden = f"model.layers.{index}.", self.hidden_size
        mixer = self.mixer.build(prefix + self.mixer.place, hidden, self.norm, new, in_parts=False)
        return PostNormLayer(
            config=self,
            index=index,
            input_norm=self.norm.build(f"{prefix}post_feedforward_layernorm", hidden, new),
            mixer=mixer,
            post_norm=self.norm.build(f"{prefix}post_attention_layernorm", hidden, new),
            mlp=self.mlp.build(prefix + self.mlp.place, hidden, new, in_parts=False),
            group=new.group,
        )


@dataclass(frozen=True, slots=True)
class PostNormLayer(DecoderLayer):
    """A layer of `PostNormLayerConfig` with its tensors.

    `post_norm` is the norm of attention's output, and `input_norm` that of the MLP's output.
    """

    post_norm: RmsNorm
    mlp: GatedMlp

    def enter(
        self, step: LayerStep, hidden: Tensor | PeerProduct | None, residual: Tensor
    ) -> tuple[Entered, Tensor]:
        if hidden is not None:
            # `hidden` is one tensor: `finish` adds the products of all ranks (`of_all_ranks`).
            residual = residual + cast("Tensor", hidden)
        return self.mixer.enter(step, residual, residual.dtype), residual

    def finish(
        self, step: LayerStep, entered: Entered, residual: Tensor, outputs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        mixed, residual = self.mix(step, entered, residual, outputs)
        residual = residual + self.post_norm.norm(step.ops, cast("Tensor", mixed))
        product = self.of_all_ranks(self.mlp.product(step.ops, residual), residual)
        return self.input_norm.norm(step.ops, cast("Tensor", product)), residual
