"""The layers of Llama and similar models: their sizes as data, and their computation.

    config.json -> LayerConfig of each layer -> DecoderLayer, with tensors
    x -> norm -> QKV -> rope, KV -> attention -> output -> + -> norm -> MLP -> + x

A config is compared and hashed: layers with equal configs launch the same. An architecture whose
layers have another order of norms brings configs that build its own (`sandwich`).

Torch is imported for types alone, as in `modules`. Knows: names in checkpoints. Does not know:
config.json, or which kernels do the work (`Ops`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from engine.models.layers.attention import AttentionConfig, Sinks
from engine.models.layers.mixture import Mixture, MixtureConfig
from engine.models.layers.mlp import GatedMlp, MlpConfig
from engine.models.layers.norms import RmsNorm, RmsNormConfig
from engine.models.modules import Allocator, Linear, LinearConfig
from kernels.attention.variant import AttentionVariant

if TYPE_CHECKING:
    from torch import Tensor

    from engine.models.rank_group import RankGroup
    from kernels.attention.batch_layout import BatchLayout
    from kernels.collectives.peer_rows import PeerProduct
    from kernels.linear.fp8_rows import Fp8Rows, Scaling
    from kernels.ops import Ops


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """Config of a layer, without tensors."""

    hidden_size: int
    attention: AttentionConfig
    mlp: MlpConfig | MixtureConfig
    norm: RmsNormConfig
    before_mlp: ClassVar[str] = "post_attention_layernorm"  # name of the norm before the MLP

    @property
    def num_weights(self) -> int:
        """Weights used per token, without norms and biases (a few thousandths)."""
        attention = 2 * (self.attention.query_size + self.attention.kv_size)
        return self.hidden_size * attention + self.mlp.num_weights(self.hidden_size)

    def matrices(self, index: int) -> Iterator[LinearConfig]:
        """Yield all matrices of the layer at `index` of the model."""
        prefix, hidden = f"model.layers.{index}.", self.hidden_size
        yield self.attention.qkv(f"{prefix}self_attn.", hidden)
        yield self.attention.output(f"{prefix}self_attn.", hidden)
        yield from self.mlp.matrices(prefix + self.mlp.place, hidden)

    @property
    def num_held_weights(self) -> int:
        """Weights on the device, without norms and biases: with mixtures, more than per token."""
        return sum(one.size_out * one.size_in for one in self.matrices(0))

    def build(self, index: int, new: Allocator) -> DecoderLayer:
        """Build the layer at `index` of the model."""
        prefix, hidden = f"model.layers.{index}.", self.hidden_size
        own, attention = prefix + "self_attn.", self.attention
        head_dim = attention.head_dim

        def head_norm(name: str) -> RmsNorm | None:
            return self.norm.build(own + name, head_dim, new) if attention.qk_norm else None

        def norm(name: str, takes_fp8: Scaling | None) -> RmsNorm:
            return replace(self.norm.build(prefix + name, hidden, new), to_fp8=takes_fp8)

        qkv = new.linear(attention.qkv(own, hidden))
        output, mlp = self.build_products(prefix, new)
        return DecoderLayer(
            config=self,
            index=index,
            input_norm=norm("input_layernorm", qkv.takes_fp8),
            qkv=qkv,
            q_norm=head_norm("q_norm"),
            k_norm=head_norm("k_norm"),
            sinks=attention.build_sinks(own, new),
            output=output,
            post_norm=norm(self.before_mlp, mlp.takes_fp8),
            mlp=mlp,
            num_heads=attention.num_heads,
            variant=attention.variant,
            eps=self.norm.eps,
            group=new.group,
        )

    def build_products(self, prefix: str, new: Allocator) -> tuple[Linear, GatedMlp | Mixture]:
        """Build the output projection and the MLP; in parts where possible."""
        output = self.attention.output(f"{prefix}self_attn.", self.hidden_size)
        mlp = self.mlp.build(prefix + self.mlp.place, self.hidden_size, new)
        return new.linear(output), mlp


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """A layer with its tensors. H hidden, D head dim, Hq and Hkv heads.

    `index` is its place in the model, and that of its KV in the pool.
    """

    adds_parts: ClassVar[bool] = True  # the reader of its products adds their parts

    config: LayerConfig
    index: int
    input_norm: RmsNorm
    qkv: Linear  # ((Hq + 2 Hkv) D, H)
    q_norm: RmsNorm | None  # (D,)
    k_norm: RmsNorm | None  # (D,)
    sinks: Sinks | None
    output: Linear  # (H, Hq D)
    post_norm: RmsNorm
    mlp: GatedMlp | Mixture
    num_heads: int  # copied from `config`, like the next fields
    variant: AttentionVariant
    eps: float
    group: RankGroup | None  # ranks whose products are added; None: one rank

    def write_kv(
        self,
        ops: Ops,
        hidden: Tensor | PeerProduct | None,
        residual: Tensor,
        layout: BatchLayout,
        kv: Tensor,
        cos_sin: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute queries (T, Hq, D) and residual (T, H); write keys and values to their slots.

        `hidden` is what the layer before has put out, whole or in parts; None in the first one.
        `cos_sin` (positions, D) float32.
        """
        normed: Tensor | Fp8Rows
        if hidden is None:
            normed = self.input_norm.norm(ops, residual)
        else:
            normed, residual = self.input_norm.add(ops, hidden, residual)
        q_norm, k_norm = self.q_norm, self.k_norm
        queries = ops.rope_write_kv(
            self.qkv.product(ops, normed),
            layout.positions,
            cos_sin,
            None if q_norm is None else q_norm.weight,
            None if k_norm is None else k_norm.weight,
            self.eps,
            kv,
            layout.slots,
            self.num_heads,
            residual.dtype,
        )
        return queries, residual

    def finish(
        self,
        ops: Ops,
        queries: Tensor,
        residual: Tensor,
        layout: BatchLayout,
        kv: Tensor,
        outputs: Tensor | None,
    ) -> tuple[Tensor | PeerProduct, Tensor]:
        """Compute the layer's output, whole or in parts, and the residual, both (T, H).

        With `outputs`, in the last layer, both are of these tokens alone.
        """
        projected, residual = self.project(ops, queries, residual, layout, kv, outputs)
        normed, residual = self.post_norm.add(ops, projected, residual)
        return self.of_all_ranks(self.mlp.product(ops, normed), residual), residual

    def project(
        self,
        ops: Ops,
        queries: Tensor,
        residual: Tensor,
        layout: BatchLayout,
        kv: Tensor,
        outputs: Tensor | None,
    ) -> tuple[Tensor | PeerProduct, Tensor]:
        """Compute attention's output, whole or in parts, and the residual, like `finish`."""
        sinks = None if self.sinks is None else self.sinks.logits
        attended = ops.paged_attention(queries, kv, layout, self.variant, sinks).flatten(1)
        if outputs is not None:  # the other tokens only write KV
            attended = attended.index_select(0, outputs)
            residual = residual.index_select(0, outputs)
        return self.of_all_ranks(self.output.product(ops, attended), residual), residual

    def of_all_ranks(self, product: Tensor, residual: Tensor) -> Tensor | PeerProduct:
        """Sum the ranks' products (T, H), in the form that the layer's norms read."""
        if self.group is None:
            return product
        return self.group.total(product, residual.dtype, in_parts=self.adds_parts)
