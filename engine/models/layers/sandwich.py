"""Layers with four norms, as in Gemma 2 and 3: before and after attention and the MLP.

    x -> norm -> QKV -> rope, KV -> attention -> output -> norm -> + -> norm -> MLP -> norm -> + x

The norms after are of what a product puts out, before it is added to the residual: so these
products are whole. Knows: names in checkpoints. Does not know: config.json.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, cast

from engine.models.layers.layer import DecoderLayer, LayerConfig
from engine.models.layers.mixer import Entered, Memory
from engine.models.layers.mlp import GatedMlp, MlpConfig
from engine.models.layers.norms import RmsNorm
from engine.models.modules import Allocator

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.attention.batch_layout import BatchLayout
    from kernels.ops import Ops


@dataclass(frozen=True, slots=True)
class SandwichLayerConfig(LayerConfig):
    """Config of a layer with norms before and after both parts. Its MLP is dense."""

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
        """Build like `LayerConfig.build_mlp`, but whole."""
        return self.mlp.build(prefix + self.mlp.place, self.hidden_size, new, in_parts=False)


@dataclass(frozen=True, slots=True)
class SandwichLayer(DecoderLayer):
    """Layer of `SandwichLayerConfig` with its tensors."""

    attention_norm: RmsNorm
    mlp_norm: RmsNorm

    def finish(
        self,
        ops: Ops,
        entered: Entered,
        residual: Tensor,
        layout: BatchLayout,
        memory: Memory,
        outputs: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        mixed, residual = self.mix(ops, entered, residual, layout, memory, outputs)
        mixed = self.attention_norm.norm(ops, cast("Tensor", mixed))  # it has no parts
        normed, residual = self.post_norm.add(ops, mixed, residual)
        product = self.of_all_ranks(self.mlp.product(ops, normed), residual)
        return self.mlp_norm.norm(ops, cast("Tensor", product)), residual
