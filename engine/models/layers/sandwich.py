"""Layers with four norms, as in Gemma 2 and 3: before and after attention and the MLP.

    x -> norm -> QKV -> rope, KV -> attention -> output -> norm -> + -> norm -> MLP -> norm -> + x

The norms after are of what a product puts out, before it is added to the residual: so these
products are whole. Knows: names in checkpoints. Does not know: config.json.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, cast

from engine.models.layers.layer import DecoderLayer, LayerConfig
from engine.models.layers.mlp import GatedMlp, MlpConfig
from engine.models.layers.norms import RmsNorm
from engine.models.modules import Allocator, Linear

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.attention.batch_layout import BatchLayout
    from kernels.ops import Ops


@dataclass(frozen=True, slots=True)
class SandwichLayerConfig(LayerConfig):
    """Config of a layer with norms before and after both parts. Its MLP is dense."""

    mlp: MlpConfig
    before_mlp: ClassVar[str] = "pre_feedforward_layernorm"

    def build(self, index: int, new: Allocator) -> SandwichLayer:
        plain = LayerConfig.build(self, index, new)
        prefix, size = f"model.layers.{index}.", self.hidden_size
        return SandwichLayer(
            **{field.name: getattr(plain, field.name) for field in fields(DecoderLayer)},
            attention_norm=self.norm.build(f"{prefix}post_attention_layernorm", size, new),
            mlp_norm=self.norm.build(f"{prefix}post_feedforward_layernorm", size, new),
        )

    def build_products(self, prefix: str, new: Allocator) -> tuple[Linear, GatedMlp]:
        """Build like `LayerConfig.build_products`, but whole."""
        own, size = f"{prefix}self_attn.", self.hidden_size
        output = self.attention.output(own, size, in_parts=False)
        mlp = self.mlp.build(prefix + self.mlp.place, size, new, in_parts=False)
        return new.linear(output), mlp


@dataclass(frozen=True, slots=True)
class SandwichLayer(DecoderLayer):
    """Layer of `SandwichLayerConfig` with its tensors."""

    adds_parts: ClassVar[bool] = False
    attention_norm: RmsNorm
    mlp_norm: RmsNorm

    def finish(
        self,
        ops: Ops,
        queries: Tensor,
        residual: Tensor,
        layout: BatchLayout,
        kv: Tensor,
        outputs: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        projected, residual = self.project(ops, queries, residual, layout, kv, outputs)
        attended = self.attention_norm.norm(ops, cast("Tensor", projected))  # it has no parts
        normed, residual = self.post_norm.add(ops, attended, residual)
        product = self.of_all_ranks(self.mlp.product(ops, normed), residual)
        return self.mlp_norm.norm(ops, cast("Tensor", product)), residual
