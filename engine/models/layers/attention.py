"""A layer's attention: its config as data, and its tensors beside projections.

Torch is imported for types alone, as in `modules`. Knows: names in checkpoints. Does not know:
config.json, or which kernels do the work (`Ops`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.models.layers.rope import RopeConfig
from engine.models.modules import Allocator, CheckpointTensor, LinearConfig, Module, side_by_side
from kernels.attention.variant import AttentionVariant

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Config of attention over the whole context, or over a sliding window."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeConfig | None  # None: no position encoding
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    window: int | None = None  # keys that a token attends to, itself included; None: all
    softcap: float | None = None  # scores become softcap * tanh(score / softcap)
    sinks: bool = False  # each head has a logit without a value beside the keys' logits
    scale: float | None = None  # scale of scores; None: head_dim ** -0.5

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together, the same as of all value heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def variant(self) -> AttentionVariant:
        """Variant of attention for the kernels."""
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        return AttentionVariant(scale, self.window, self.softcap)

    def qkv(self, prefix: str, hidden: int) -> LinearConfig:
        """Return the joined projection to queries, keys and values."""
        sizes = {"q_proj": self.query_size, "k_proj": self.kv_size, "v_proj": self.kv_size}
        return side_by_side(prefix, sizes, hidden, bias=self.qkv_bias)

    def output(self, prefix: str, hidden: int, *, in_parts: bool = True) -> LinearConfig:
        """Return the output projection; `in_parts`: as in `LinearConfig`."""
        rows = ((f"{prefix}o_proj", hidden),)
        return LinearConfig(rows, self.query_size, self.output_bias, "columns", in_parts)

    def build_sinks(self, prefix: str, new: Allocator) -> Sinks | None:
        """Build the sinks; None without sinks."""
        return Sinks(f"{prefix}sinks", new.empty(self.num_heads)) if self.sinks else None


@dataclass(frozen=True, slots=True)
class Sinks(Module):
    """A logit for each query head (Hq,), in the model's dtype."""

    name: str
    logits: Tensor

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the logits."""
        yield CheckpointTensor(self.name, self.logits, 0)

    def fill(self, generator: torch.Generator) -> None:
        self.logits.normal_(generator=generator)
