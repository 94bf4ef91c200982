"""The attention of a layer: its config, and its computation.

    x -> QKV -> head norms, rope, KV -> attention -> gates, if any -> output

At import, torch is needed only for types, as in `modules`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.models.errors import UnsupportedModel
from engine.models.layers.mixer import (
    Entered,
    KvConfig,
    KvMemory,
    LayerStep,
    Mixer,
    TokenKeys,
    check_divides,
)
from engine.models.layers.norms import RmsNorm, RmsNormConfig
from engine.models.layers.rope import RopeConfig
from engine.models.layers.vectors import Sinks
from engine.models.modules import (
    Allocator,
    Linear,
    LinearConfig,
    side_by_side,
)
from kernels.attention.variant import AttentionVariant
from kernels.limits import check_attention

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.linear.fp8_rows import Fp8Rows, Scaling
    from kernels.ops import Ops


@dataclass(frozen=True, slots=True)
class AttentionConfig(KvConfig):
    """The config of attention over the whole context, or over a sliding window."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeConfig | None  # None: no position encoding
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    norms_together: bool = False  # True: one norm over all heads' queries, and one over all keys
    # Number of keys that a token attends to, including its own; None: all.
    window: int | None = None
    softcap: float | None = None  # scores become softcap * tanh(score / softcap)
    sinks: bool = False  # True: each head has one more logit in its softmax, without a value
    scale: float | None = None  # factor on scores; None: head_dim ** -0.5
    # True: outputs are multiplied by the sigmoid of gates, projected like queries.
    gated: bool = False
    norms_values: bool = False  # True: values are normed like keys, but without weights
    interleaved: bool = False  # True: rope pairs neighbouring numbers of a head, not its two halves
    norms_heads: bool = False  # True: each head's queries and keys are normed without weights
    values_of_keys: bool = False  # True: the values are the keys before norm and rope
    kv_of: int | None = None  # index of the layer whose KV is read; None: this layer
    place: str = "self_attn."

    @property
    def query_size(self) -> int:
        """The width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """The width of all key heads together. All value heads have the same width."""
        return self.num_kv_heads * self.head_dim

    @property
    def variant(self) -> AttentionVariant:
        """The variant of attention for the kernels."""
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        return AttentionVariant(scale, self.window, self.softcap)

    @property
    def kept(self) -> TokenKeys:
        return TokenKeys(self.num_kv_heads, self.head_dim)

    @property
    def rope_size(self) -> int:
        return self.head_dim

    @property
    def attention_flops(self) -> float:
        return 4.0 * self.query_size

    @property
    def fields(self) -> str:
        heads, kv_heads = self.num_heads, self.num_kv_heads
        return (
            f"num_attention_heads {heads}, num_key_value_heads {kv_heads}, head_dim {self.head_dim}"
        )

    def check(self, block_size: int) -> None:
        sizes = self.num_heads, self.num_kv_heads
        check_attention(*sizes, block_size=block_size, head_dim=self.head_dim)

    def check_shard(self, num_ranks: int) -> None:
        check_divides(num_ranks, "num_attention_heads", self.num_heads)
        if self.norms_together:
            raise UnsupportedModel(
                f"tensor_parallel {num_ranks}: norms of all heads together are computed by one rank"
            )
        if num_ranks % self.num_kv_heads:
            check_divides(num_ranks, "num_key_value_heads", self.num_kv_heads)

    def shard(self, num_ranks: int) -> AttentionConfig:
        return replace(
            self,
            num_heads=self.num_heads // num_ranks,
            num_kv_heads=max(self.num_kv_heads // num_ranks, 1),
        )

    def with_rope(self, rope: RopeConfig) -> AttentionConfig:
        return replace(self, rope=rope)

    @property
    def projections(self) -> tuple[str, ...]:
        """The names of the projections to keys and values. Empty if another layer's KV is read."""
        if self.kv_of is not None:
            return ()
        return ("k_proj",) if self.values_of_keys else ("k_proj", "v_proj")

    def num_weights(self, hidden: int) -> int:
        kv_size = len(self.projections) * self.kv_size
        return hidden * ((2 + self.gated) * self.query_size + kv_size)

    def matrices(self, prefix: str, hidden: int) -> Iterator[LinearConfig]:
        yield self.qkv(prefix, hidden)
        yield self.output(prefix, hidden)

    def qkv(self, prefix: str, hidden: int) -> LinearConfig:
        """Return the joined projection to queries, and to keys and values if the layer has its own.

        With gates, the rows of each head's gate follow the rows of its query. If there are gates,
        norms over all heads together, or interleaved heads, the product is not computed in parts.
        """
        queries = self.query_size * (1 + self.gated)
        sizes = {"q_proj": queries, **dict.fromkeys(self.projections, self.kv_size)}
        in_parts = not (self.gated or self.norms_together or self.interleaved)
        return side_by_side(prefix, sizes, hidden, bias=self.qkv_bias, in_parts=in_parts)

    def output(self, prefix: str, hidden: int, *, in_parts: bool = True) -> LinearConfig:
        """Return the output projection. For `in_parts`, see `LinearConfig`."""
        rows = ((f"{prefix}o_proj", hidden),)
        return LinearConfig(rows, self.query_size, self.output_bias, "columns", in_parts)

    def build(
        self, prefix: str, hidden: int, norm: RmsNormConfig, new: Allocator, *, in_parts: bool
    ) -> Attention:
        def head_norm(name: str, of_all: int) -> RmsNorm | None:
            size = of_all if self.norms_together else self.head_dim
            return norm.build(prefix + name, size, new) if self.qk_norm else None

        keeps_kv = self.kv_of is None
        return Attention(
            config=self,
            qkv=new.linear(self.qkv(prefix, hidden)),
            q_norm=head_norm("q_norm", self.query_size),
            k_norm=head_norm("k_norm", self.kv_size) if keeps_kv else None,
            sinks=Sinks(f"{prefix}sinks", new.empty(self.num_heads)) if self.sinks else None,
            output=new.linear(self.output(prefix, hidden, in_parts=in_parts)),
            variant=self.variant,
            eps=norm.eps,
        )


@dataclass(frozen=True, slots=True)
class Attention(Mixer):
    """The attention with its tensors.

    H is the hidden size, D the head size, Hq and Hkv the numbers of query and KV heads.
    """

    config: AttentionConfig
    # ((Hq + 2 Hkv) D, H); fewer rows with fewer `projections`; Hq D more rows with gates.
    qkv: Linear
    q_norm: RmsNorm | None  # (D,), or (Hq D,) if norms are over all heads together
    k_norm: RmsNorm | None  # (D,), or (Hkv D,)
    sinks: Sinks | None
    output: Linear  # (H, Hq D)
    variant: AttentionVariant
    eps: float

    @property
    def takes_fp8(self) -> Scaling | None:
        return self.qkv.takes_fp8

    def enter(self, step: LayerStep, x: Tensor | Fp8Rows, dtype: torch.dtype) -> Entered:
        """Compute queries (T, Hq, D), and gates (T, Hq, D) if any. Write the layer's KV, if any."""
        ops, layout, memory = step
        assert isinstance(memory, KvMemory)
        qkv, gates = self.qkv.product(ops, x), Entered()
        if self.config.gated:
            gates = (self._gates(qkv),)
        if self.config.interleaved:
            qkv = self._in_halves(qkv)
        q_norm, k_norm = self.q_norm, self.k_norm
        if q_norm is not None and k_norm is not None and self.config.norms_together:
            sizes = [self.config.query_size, self.config.kv_size, self.config.kv_size]
            apart = qkv.split(sizes, dim=1)  # type: ignore[no-untyped-call]
            qkv = _joined(ops, q_norm, k_norm, *apart)
            q_norm = k_norm = None
        queries = ops.rope_write_kv(
            qkv,
            layout.positions,
            memory.cos_sin,
            None if q_norm is None else q_norm.weight,
            None if k_norm is None else k_norm.weight,
            self.eps,
            memory.kv,
            layout.slots,
            self.config.num_heads,
            dtype,
            self.config.norms_values,
            self.config.gated,
        )
        if memory.query_scales is not None:
            queries = queries * memory.query_scales[layout.positions].to(dtype)
        return queries, *gates

    def _gates(self, product: Tensor) -> Tensor:
        """Return the gates (T, Hq, D) of a product in which each query head precedes its gate."""
        queries = product[:, : 2 * self.config.query_size]
        return queries.view(len(product), -1, self.config.head_dim)[:, 1::2]

    def _in_halves(self, qkv: Tensor) -> Tensor:
        """Reorder the numbers of each query and key head for a rope that pairs two halves.

        The order does not change scores. With `norms_heads`, also norm the heads, before the rope.
        """
        import torch  # imported here, so that configs can be read without torch

        size = self.config.head_dim
        count = self.config.num_heads + self.config.num_kv_heads
        heads = qkv.view(len(qkv), -1, size)
        pairs = heads[:, :count].reshape(len(qkv), count, size // 2, 2)
        turned = pairs.transpose(2, 3).flatten(2)
        if self.config.norms_heads:
            wide = torch.nn.functional.rms_norm(turned.float(), (size,), eps=self.eps)
            turned = wide.to(qkv.dtype)
        return torch.cat((turned, heads[:, count:]), dim=1).flatten(1)

    def leave(self, step: LayerStep, entered: Entered, outputs: Tensor | None) -> Tensor:
        ops, layout, memory = step
        assert isinstance(memory, KvMemory)
        queries, *gates = entered
        sinks = None if self.sinks is None else self.sinks.logits
        attended = ops.paged_attention(queries, memory.kv, layout, self.variant, sinks)
        if outputs is not None:  # the other tokens were needed only for their KV
            attended = attended.index_select(0, outputs)
            gates = [gate.index_select(0, outputs) for gate in gates]
        for gate in gates:
            attended = attended * gate.sigmoid()
        return self.output.product(ops, attended.flatten(1))


def _joined(
    ops: Ops, q_norm: RmsNorm, k_norm: RmsNorm, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    import torch  # imported here, so that configs can be read without torch

    return torch.cat((q_norm.norm(ops, queries), k_norm.norm(ops, keys), values), dim=1)
