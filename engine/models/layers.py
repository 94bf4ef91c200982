"""The layers of Llama and those like it: their sizes as data, and what they compute.

    config.json -> LayerConfig of each layer -> DecoderLayer, with tensors
    x -> norm -> QKV -> rope, KV -> attention -> output -> + -> norm -> MLP -> + x

A config is compared and hashed: layers with equal configs launch the same. An architecture that has
other norms, another MLP or another order of them brings configs that build its own.

Torch is imported for types alone, as in `modules`. Knows: names in checkpoints. Does not know:
config.json, or which kernels do the work (`Ops`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.models.mixture import Mixture, MixtureConfig
from engine.models.modules import Allocator, CheckpointTensor, Linear, LinearConfig, Module
from engine.models.rope import RopeConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from engine.models.shards import RankGroup
    from kernels.attention.batch_layout import BatchLayout
    from kernels.linear.fp8_rows import Fp8Rows, Scaling
    from kernels.ops import Ops


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Attention over the whole context."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeConfig | None  # None: positions are not encoded
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together; the value heads have the same."""
        return self.num_kv_heads * self.head_dim

    def qkv(self, prefix: str, hidden: int) -> LinearConfig:
        """The projections to queries, keys and values."""
        sizes = {"q_proj": self.query_size, "k_proj": self.kv_size, "v_proj": self.kv_size}
        return _side_by_side(prefix, sizes, hidden, bias=self.qkv_bias)

    def output(self, prefix: str, hidden: int) -> LinearConfig:
        """The projection of what was attended to."""
        rows = ((f"{prefix}o_proj", hidden),)
        return LinearConfig(rows, self.query_size, self.output_bias, "columns")


@dataclass(frozen=True, slots=True)
class RmsNormConfig:
    """Of the norms of a layer, or the last one."""

    eps: float

    def build(self, name: str, size: int, new: Allocator) -> RmsNorm:
        """The norm whose weight has this name."""
        return RmsNorm(name, new.empty(size), self.eps)


@dataclass(frozen=True, slots=True)
class MlpConfig:
    """SwiGLU of `size` columns."""

    size: int
    bias: bool = False
    place: str = "mlp."  # before its matrices' names, in a layer's

    def num_weights(self, hidden: int) -> int:
        """That a token is multiplied with."""
        return 3 * hidden * self.size

    def gate_up(self, prefix: str, hidden: int) -> LinearConfig:
        """The gate and what it is multiplied with; both are whole when they are read."""
        sizes = {"gate_proj": self.size, "up_proj": self.size}
        return _side_by_side(prefix, sizes, hidden, bias=self.bias, in_parts=False)

    def down(self, prefix: str, hidden: int) -> LinearConfig:
        """The projection back."""
        return LinearConfig(((f"{prefix}down_proj", hidden),), self.size, self.bias, "columns")

    def matrices(self, prefix: str, hidden: int) -> Iterator[LinearConfig]:
        """All that it holds, which may be more than a token is multiplied with."""
        yield self.gate_up(prefix, hidden)
        yield self.down(prefix, hidden)

    def build(self, prefix: str, hidden: int, new: Allocator) -> GatedMlp:
        """The MLP whose matrices' names begin with `prefix`."""
        gate_up, down = self.gate_up(prefix, hidden), self.down(prefix, hidden)
        return GatedMlp(new.linear(gate_up), new.linear(down))


def _side_by_side(
    prefix: str, sizes: dict[str, int], hidden: int, *, bias: bool, in_parts: bool = True
) -> LinearConfig:
    rows = tuple((prefix + name, size) for name, size in sizes.items())
    return LinearConfig(rows, hidden, bias, "rows", in_parts)


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What a layer is, before it has tensors."""

    hidden_size: int
    attention: AttentionConfig
    mlp: MlpConfig | MixtureConfig
    norm: RmsNormConfig

    @property
    def num_weights(self) -> int:
        """That a token is multiplied with. Norms and biases, a few thousandths, are left out."""
        attention = 2 * (self.attention.query_size + self.attention.kv_size)
        return self.hidden_size * attention + self.mlp.num_weights(self.hidden_size)

    def matrices(self, index: int) -> Iterator[LinearConfig]:
        """All that it holds, at `index` of the model."""
        prefix, hidden = f"model.layers.{index}.", self.hidden_size
        yield self.attention.qkv(f"{prefix}self_attn.", hidden)
        yield self.attention.output(f"{prefix}self_attn.", hidden)
        yield from self.mlp.matrices(prefix + self.mlp.place, hidden)

    @property
    def num_held_weights(self) -> int:
        """That are on the device, with the same left out: more than a token meets in mixtures."""
        return sum(one.size_out * one.size_in for one in self.matrices(0))

    def build(self, index: int, new: Allocator) -> DecoderLayer:
        """The layer at `index` of the model."""
        prefix, hidden = f"model.layers.{index}.", self.hidden_size
        own, attention = prefix + "self_attn.", self.attention

        def head_norm(name: str) -> RmsNorm | None:
            weight = new.empty(attention.head_dim) if attention.qk_norm else None
            return None if weight is None else RmsNorm(own + name, weight, self.norm.eps)

        def norm(name: str, takes_fp8: Scaling | None) -> RmsNorm:
            return replace(self.norm.build(prefix + name, hidden, new), to_fp8=takes_fp8)

        qkv = new.linear(attention.qkv(own, hidden))
        mlp = self.mlp.build(prefix + self.mlp.place, hidden, new)
        return DecoderLayer(
            config=self,
            index=index,
            input_norm=norm("input_layernorm", qkv.takes_fp8),
            qkv=qkv,
            q_norm=head_norm("q_norm"),
            k_norm=head_norm("k_norm"),
            output=new.linear(attention.output(own, hidden)),
            post_norm=norm("post_attention_layernorm", mlp.takes_fp8),
            mlp=mlp,
            num_heads=attention.num_heads,
            scale=attention.head_dim**-0.5,
            eps=self.norm.eps,
            group=new.group,
        )


@dataclass(frozen=True, slots=True)
class RmsNorm(Module):
    """A norm over the last dimension, as Llama has it. `weight` (H,).

    With `to_fp8` it quantises, where it can, what only a product in fp8 reads.
    """

    name: str
    weight: Tensor
    eps: float
    to_fp8: Scaling | None = None

    def norm(self, ops: Ops, x: Tensor) -> Tensor:
        """x (T, H) -> (T, H)."""
        return ops.rms_norm(x, self.weight, self.eps)

    def add(self, ops: Ops, x: Tensor, residual: Tensor) -> tuple[Tensor | Fp8Rows, Tensor]:
        """x (T, H) or in parts, residual (T, H) -> (normed sum, sum), both (T, H)."""
        if self.to_fp8 is not None:
            return ops.add_rms_norm_fp8(x, residual, self.weight, self.eps, self.to_fp8)
        return ops.add_rms_norm(x, residual, self.weight, self.eps)

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """The weight."""
        yield CheckpointTensor(f"{self.name}.weight", self.weight)

    def fill(self, generator: torch.Generator) -> None:  # noqa: ARG002
        """As `Module.fill`."""
        self.weight.fill_(1.0)


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """down(silu(gate(x)) * up(x))."""

    gate_up: Linear
    down: Linear

    @property
    def takes_fp8(self) -> Scaling | None:
        """As `Linear.takes_fp8`."""
        return self.gate_up.takes_fp8

    def product(self, ops: Ops, x: Tensor | Fp8Rows) -> Tensor:
        """x (T, H) -> (T, H), whole or in parts."""
        gate_up, by = self.gate_up.product(ops, x), self.down.takes_fp8
        gated = ops.silu_mul(gate_up) if by is None else ops.silu_mul_fp8(gate_up, by)
        return self.down.product(ops, gated)


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """A layer with its tensors. H hidden, D head dim, Hq and Hkv heads.

    `index` is its place in the model, and that of its KV in the pool.
    """

    config: LayerConfig
    index: int
    input_norm: RmsNorm
    qkv: Linear  # ((Hq + 2 Hkv) D, H)
    q_norm: RmsNorm | None  # (D,)
    k_norm: RmsNorm | None  # (D,)
    output: Linear  # (H, Hq D)
    post_norm: RmsNorm
    mlp: GatedMlp | Mixture
    num_heads: int  # as `config` has it; so is what follows
    scale: float
    eps: float
    group: RankGroup | None  # whose products are added up; None: it is alone

    def write_kv(
        self,
        ops: Ops,
        hidden: Tensor | None,
        residual: Tensor,
        layout: BatchLayout,
        kv: Tensor,
        cos_sin: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The queries (T, Hq, D) and the residual (T, H); keys and values go to their slots.

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
    ) -> tuple[Tensor, Tensor]:
        """What the layer puts out, whole or in parts, and the residual, both (T, H).

        With `outputs`, in the last layer, both are of these tokens alone.
        """
        attended = ops.paged_attention(queries, kv, layout, self.scale).flatten(1)
        if outputs is not None:  # of the other tokens only the KV is read
            attended, residual = attended[outputs], residual[outputs]
        projected = self._of_all_ranks(self.output.product(ops, attended), residual)
        normed, residual = self.post_norm.add(ops, projected, residual)
        return self._of_all_ranks(self.mlp.product(ops, normed), residual), residual

    def _of_all_ranks(self, product: Tensor, residual: Tensor) -> Tensor:
        return product if self.group is None else self.group.total(product, residual.dtype)
