"""The multi-head latent attention of a layer (arXiv 2405.04434): its config and computation.

    x -> [queries' latent | latent and rotated key] -> norms -> queries; rope; the latent is kept
      -> attention over latents -> output

For each token, one latent vector that all heads share is stored instead of keys and values. The
attention kernels get the matrix that turns latents into keys and values, and choose how to use it.
At import, torch is needed only for types, as in `modules`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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
from engine.models.modules import Allocator, Linear, LinearConfig, side_by_side
from engine.models.weight_formats.plain import PlainLinear
from kernels.latents.latent_shape import LatentShape
from kernels.limits import check_latents

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.linear.fp8_rows import Fp8Rows, Scaling

NORM = RmsNormConfig(1e-6)  # norms of latents always have this epsilon, not that of the config


@dataclass(frozen=True, slots=True)
class LatentConfig(KvConfig):
    """The config of latent attention over the whole context."""

    num_heads: int
    shape: LatentShape
    rope: RopeConfig | None
    query_rank: int | None = None  # size of the queries' latent; None: queries have no latent
    interleaved: bool = True  # True: rope pairs neighbouring numbers, not two halves
    window: int | None = None
    place: str = "self_attn."

    @property
    def kept(self) -> TokenKeys:
        return TokenKeys(1, self.shape.latent, has_values=False)

    @property
    def rope_size(self) -> int:
        return self.shape.rope

    @property
    def attention_flops(self) -> float:
        """The FLOPs of a prompt's attention per token and per earlier position."""
        return 2.0 * self.num_heads * (self.shape.head_dim + self.shape.values)

    @property
    def fields(self) -> str:
        shape = self.shape
        return (
            f"kv_lora_rank {shape.rank}, qk_nope_head_dim {shape.nope}, "
            f"qk_rope_head_dim {shape.rope}, v_head_dim {shape.values}"
        )

    def check(self, block_size: int) -> None:
        shape, head_dim = self.shape, self.shape.padded_dim
        check_latents(rank=shape.rank, rope=shape.rope, head_dim=head_dim, block_size=block_size)

    def check_shard(self, num_ranks: int) -> None:
        check_divides(num_ranks, "num_attention_heads", self.num_heads)

    def shard(self, num_ranks: int) -> LatentConfig:
        return replace(self, num_heads=self.num_heads // num_ranks)

    def with_rope(self, rope: RopeConfig) -> LatentConfig:
        return replace(self, rope=rope)

    @property
    def query_size(self) -> int:
        """The width of all query heads together."""
        return self.num_heads * self.shape.head_dim

    def num_weights(self, hidden: int) -> int:
        return sum(one.size_out * one.size_in for one in self.matrices("", hidden))

    def matrices(self, prefix: str, hidden: int) -> Iterator[LinearConfig]:
        yield self.first(prefix, hidden)
        if self.query_rank is not None:
            yield self.queries(prefix, self.query_rank)
        yield self.keys_values(prefix)
        yield self.output(prefix, hidden)

    def first(self, prefix: str, hidden: int) -> LinearConfig:
        """Return the joined projection to queries (or their latent) and to the stored latent."""
        name, size = "q_proj", self.query_size
        if self.query_rank is not None:
            name, size = "q_a_proj", self.query_rank
        sizes = {name: size, "kv_a_proj_with_mqa": self.shape.latent}
        return side_by_side(prefix, sizes, hidden, bias=False, in_parts=False)

    def queries(self, prefix: str, rank: int) -> LinearConfig:
        """Return the projection from the latent of `rank` numbers to queries."""
        return side_by_side(prefix, {"q_b_proj": self.query_size}, rank, bias=False, in_parts=False)

    def keys_values(self, prefix: str) -> LinearConfig:
        """Return the projection from latents to each head's keys and values."""
        sizes = {"kv_b_proj": self.num_heads * (self.shape.nope + self.shape.values)}
        return side_by_side(prefix, sizes, self.shape.rank, bias=False, in_parts=False)

    def output(self, prefix: str, hidden: int, *, in_parts: bool = True) -> LinearConfig:
        """Return the output projection. For `in_parts`, see `LinearConfig`."""
        rows = ((f"{prefix}o_proj", hidden),)
        return LinearConfig(rows, self.num_heads * self.shape.values, False, "columns", in_parts)

    def build(
        self,
        prefix: str,
        hidden: int,
        norm: RmsNormConfig,  # noqa: ARG002  its eps is not that of latents
        new: Allocator,
        *,
        in_parts: bool,
    ) -> LatentAttention:
        queries = q_norm = None
        if self.query_rank is not None:
            q_norm = NORM.build(f"{prefix}q_a_layernorm", self.query_rank, new)
            queries = new.linear(self.queries(prefix, self.query_rank))
        return LatentAttention(
            config=self,
            first=new.linear(self.first(prefix, hidden)),
            q_norm=q_norm,
            queries=queries,
            norm=NORM.build(f"{prefix}kv_a_layernorm", self.shape.rank, new),
            keys_values=new.linear(self.keys_values(prefix)),
            output=new.linear(self.output(prefix, hidden, in_parts=in_parts)),
        )


@dataclass(frozen=True, slots=True)
class LatentAttention(Mixer):
    """The latent attention with its tensors.

    H is the hidden size, Hq the number of heads, Q the size of the queries' latent, and R that of
    the stored latent. A head's key has P rotated numbers and N others, and its value V numbers.
    """

    config: LatentConfig
    first: Linear  # (Q + R + P, H); without the queries' latent (Hq (N + P) + R + P, H)
    q_norm: RmsNorm | None  # (Q,)
    queries: Linear | None  # (Hq (N + P), Q)
    norm: RmsNorm  # (R,)
    keys_values: Linear  # (Hq (N + V), R)
    output: Linear  # (H, Hq V)

    @property
    def takes_fp8(self) -> Scaling | None:
        return self.first.takes_fp8

    def dequantised(self) -> LatentAttention:
        """Return this mixer with dequantised `keys_values`, since each step absorbs that matrix."""
        if isinstance(self.keys_values, PlainLinear):
            return self
        weight = self.keys_values.dense(self.norm.weight.dtype)
        return replace(self, keys_values=PlainLinear(self.keys_values.config, weight, None))

    def enter(self, step: LayerStep, x: Tensor | Fp8Rows, dtype: torch.dtype) -> Entered:
        """Compute queries (T, Hq, N + P), and write latents."""
        ops, layout, memory = step
        assert isinstance(memory, KvMemory)
        product = self.first.product(ops, x)
        latent = self.config.shape.latent
        q, kept = product[:, :-latent], product[:, -latent:]
        if self.q_norm is not None and self.queries is not None:
            q = self.queries.product(ops, self.q_norm.norm(ops, q))
        queries = ops.write_latents(
            q,
            kept,
            layout.positions,
            memory.cos_sin,
            self.norm.weight,
            self.norm.eps,
            memory.kv,
            layout.slots,
            self.config.num_heads,
            self.config.interleaved,
        )
        if memory.query_scales is not None:
            queries = queries * memory.query_scales[layout.positions].to(dtype)
        return (queries,)

    def leave(self, step: LayerStep, entered: Entered, outputs: Tensor | None) -> Tensor:
        ops, layout, memory = step
        assert isinstance(memory, KvMemory)
        (queries,), shape = entered, self.config.shape
        weight = self.keys_values.dense(queries.dtype)
        by_head = weight.view(self.config.num_heads, -1, shape.rank)
        attended = ops.latent_attention(queries, memory.kv, by_head, layout, shape)
        if outputs is not None:  # the other tokens were needed only for their latents
            attended = attended.index_select(0, outputs)
        return self.output.product(ops, attended.flatten(1))
