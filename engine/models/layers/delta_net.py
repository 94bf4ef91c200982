"""The Gated DeltaNet of a layer (arXiv 2412.06464): its config, and its computation.

    x -> queries, keys, values, z -> convolution of the first three -> gated delta rule
      -> norm of each head, times silu(z) -> output

The recurrent state of a layer consists of the last inputs of the convolution, and a matrix for each
value head. The convolution, the vectors and the gates' projections are unquantised in every weight
format. At import, torch is needed only for types, as in `modules`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.models.layers.mixer import (
    Entered,
    LayerStep,
    Mixer,
    RecurrentConfig,
    StateMemory,
    check_divides,
    of_outputs,
)
from engine.models.layers.norms import RmsNormConfig
from engine.models.layers.vectors import Conv, Vector, build_conv, build_vector
from engine.models.modules import Allocator, Linear, LinearConfig
from engine.models.weight_formats.plain import PLAIN
from kernels.limits import check_conv, check_state
from storage.layouts.state_layout import StateShape

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.linear.fp8_rows import Fp8Rows, Scaling


@dataclass(frozen=True, slots=True)
class DeltaNetConfig(RecurrentConfig):
    """The config of a Gated DeltaNet.

    Every key head serves the same number of value heads. If `joined`, the model checkpoint has one
    projection, ordered by key head (Qwen3-Next): first the query and key of a key head, then the
    values and z of its value heads. If not, the checkpoint has one projection to all queries, keys
    and values, and another to all z.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    joined: bool = False
    place: str = "linear_attn."

    @property
    def key_size(self) -> int:
        """The width of all keys together. All queries have the same width."""
        return self.key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """The width of all values together."""
        return self.value_heads * self.value_dim

    @property
    def mixed_sizes(self) -> tuple[int, int, int]:
        """The numbers of the convolution's channels for queries, keys and values, in this order."""
        return self.key_size, self.key_size, self.value_size

    @property
    def channels(self) -> int:
        """The number of channels of the convolution."""
        return sum(self.mixed_sizes)

    @property
    def state(self) -> StateShape:
        return StateShape(
            self.channels, self.conv_width - 1, self.value_heads, self.key_dim, self.value_dim
        )

    def check(self) -> None:
        check_conv(self.conv_width)
        check_state(
            heads=self.value_heads,
            groups=self.key_heads,
            columns=self.value_dim,
            products=self.key_dim,
        )

    def matrices(self, prefix: str, hidden: int) -> Iterator[LinearConfig]:
        yield self._mixed(prefix, hidden)
        yield self._gates(prefix, hidden)
        yield self._output(prefix, hidden, in_parts=True)

    def _mixed(self, prefix: str, hidden: int) -> LinearConfig:
        if self.joined:
            joined = ((f"{prefix}in_proj_qkvz", self.channels + self.value_size),)
            return LinearConfig(joined, hidden, bias=False, shards="rows", in_parts=False)
        rows = (f"{prefix}in_proj_qkv", self.channels), (f"{prefix}in_proj_z", self.value_size)
        sections = self.mixed_sizes, (self.value_size,)
        return LinearConfig(rows, hidden, False, "rows", in_parts=False, sections=sections)

    def _gates(self, prefix: str, hidden: int) -> LinearConfig:
        heads = self.value_heads
        rows: tuple[tuple[str, int], ...]
        if self.joined:
            rows = ((f"{prefix}in_proj_ba", 2 * heads),)
        else:
            rows = (f"{prefix}in_proj_b", heads), (f"{prefix}in_proj_a", heads)
        return LinearConfig(rows, hidden, bias=False, shards="rows", in_parts=False, plain=True)

    def _output(self, prefix: str, hidden: int, *, in_parts: bool) -> LinearConfig:
        rows = ((f"{prefix}out_proj", hidden),)
        return LinearConfig(rows, self.value_size, False, "columns", in_parts)

    def check_shard(self, num_ranks: int) -> None:
        check_divides(num_ranks, "linear_num_key_heads", self.key_heads)

    def shard(self, num_ranks: int) -> DeltaNetConfig:
        """Divide the key heads among ranks, each with its value heads, channels and states."""
        heads = self.key_heads // num_ranks, self.value_heads // num_ranks
        return replace(self, key_heads=heads[0], value_heads=heads[1])

    def build(
        self, prefix: str, hidden: int, norm: RmsNormConfig, new: Allocator, *, in_parts: bool
    ) -> DeltaNet:
        heads = self.value_heads
        return DeltaNet(
            config=self,
            mixed=new.linear(self._mixed(prefix, hidden)),
            gates=PLAIN.linear(self._gates(prefix, hidden), new),
            conv=build_conv(f"{prefix}conv1d", self.mixed_sizes, self.conv_width, new, bias=False),
            a_log=build_vector(f"{prefix}A_log", heads, new, low=0.0, high=2.0),
            dt_bias=build_vector(f"{prefix}dt_bias", heads, new, low=-4.0, high=0.0),
            norm=build_vector(f"{prefix}norm.weight", self.value_dim, new, wide=False),
            output=new.linear(self._output(prefix, hidden, in_parts=in_parts)),
            eps=norm.eps,
        )


@dataclass(frozen=True, slots=True)
class DeltaNet(Mixer):
    """A Gated DeltaNet with its tensors.

    H is the hidden size, V the size of a value head, Hv the number of value heads.
    """

    config: DeltaNetConfig
    mixed: Linear  # queries, keys, values, z
    gates: Linear  # (2 Hv, H): learning rates and decays
    conv: Conv
    a_log: Vector  # (Hv,)
    dt_bias: Vector  # (Hv,)
    norm: Vector  # (V,)
    output: Linear  # (H, Hv V)
    eps: float

    @property
    def takes_fp8(self) -> Scaling | None:
        """None, because an unquantised projection (`gates`) reads the same input."""
        return None

    def enter(
        self,
        step: LayerStep,
        x: Tensor | Fp8Rows,
        dtype: torch.dtype,  # noqa: ARG002
    ) -> Entered:
        """Compute the gated delta rule's output and z, both (T, Hv V). Write the states."""
        ops, memory = step.ops, step.memory
        assert isinstance(memory, StateMemory)
        state, rows = memory
        mixed, gates = self.mixed.product(ops, x), self.gates.product(ops, x)
        apart = _apart_by_head if self.config.joined else _apart
        qkv, z, b, a = apart(self.config, mixed, gates)
        qkv = ops.causal_conv(qkv, self.conv.weight, self.conv.bias, state.conv, rows)
        vectors = self.a_log.values, self.dt_bias.values
        return ops.gated_delta(qkv, a, b, *vectors, state.recurrence, rows), z

    def leave(self, step: LayerStep, entered: Entered, outputs: Tensor | None) -> Tensor:
        values, z = of_outputs(entered, outputs)
        group = self.config.value_dim
        normed = step.ops.gated_norm(values, z, self.norm.values, self.eps, group, False)
        return self.output.product(step.ops, normed)


def _apart(
    config: DeltaNetConfig, mixed: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return views of the joined queries, keys and values, of z, of learning rates, of decays."""
    channels, heads = config.channels, config.value_heads
    return mixed[:, :channels], mixed[:, channels:], gates[:, :heads], gates[:, heads:]


def _apart_by_head(
    config: DeltaNetConfig, mixed: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the parts as `_apart` does, but copied, because columns are ordered by key head."""
    heads, per_key = config.key_heads, config.value_heads // config.key_heads
    values = per_key * config.value_dim
    sizes = [config.key_dim, config.key_dim, values, values]
    by_head = mixed.view(len(mixed), heads, -1)
    queries, keys, value, z = by_head.split(sizes, dim=2)  # type: ignore[no-untyped-call]
    qkv = mixed.new_empty((len(mixed), config.channels))
    parts = qkv.split(list(config.mixed_sizes), dim=1)  # type: ignore[no-untyped-call]
    for part, source in zip(parts, (queries, keys, value), strict=True):
        part.view(len(mixed), heads, -1).copy_(source)
    b, a = gates.view(len(gates), heads, 2, per_key).unbind(2)
    return qkv, z.flatten(1), b.flatten(1), a.flatten(1)
