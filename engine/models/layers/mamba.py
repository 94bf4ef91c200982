"""The Mamba-2 of a layer (Dao and Gu, "Transformers are SSMs", 2024): config and computation.

    x -> gate, x B C, dt -> convolution of x B C -> state space model
      -> times silu(gate), norm of each group -> output

The recurrent state of a layer consists of the last inputs of the convolution, and a matrix for each
head. The limits of dt apply to both prompts and decodes, as in training. (`transformers` ignores
the limits when it computes a single token with a cache.) The convolution and the vectors are
unquantised in every weight format. At import, torch is needed only for types, as in `modules`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
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
from kernels.limits import check_conv, check_hidden_size, check_state
from storage.layouts.state_layout import StateShape

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.linear.fp8_rows import Fp8Rows, Scaling


@dataclass(frozen=True, slots=True)
class MambaConfig(RecurrentConfig):
    """The config of a Mamba-2. Every group of B and C serves the same number of heads."""

    heads: int
    groups: int
    head_dim: int
    state_size: int  # size of B and of C for each group
    conv_width: int
    eps: float
    dt_limit: tuple[float, float] = (0.0, inf)
    conv_bias: bool = True
    bias: bool = False
    place: str = "mamba."

    @property
    def inner_size(self) -> int:
        """The width of all heads together. The gate has the same width."""
        return self.heads * self.head_dim

    @property
    def mixed_sizes(self) -> tuple[int, int, int]:
        """The numbers of the convolution's channels for x, B and C, in this order."""
        return self.inner_size, self.groups * self.state_size, self.groups * self.state_size

    @property
    def channels(self) -> int:
        """The number of channels of the convolution."""
        return sum(self.mixed_sizes)

    @property
    def state(self) -> StateShape:
        return StateShape(
            self.channels, self.conv_width - 1, self.heads, self.head_dim, self.state_size
        )

    def check(self) -> None:
        check_conv(self.conv_width)
        check_state(
            heads=self.heads, groups=self.groups, columns=self.head_dim, products=self.state_size
        )
        check_hidden_size(self.inner_size // self.groups)

    def matrices(self, prefix: str, hidden: int) -> Iterator[LinearConfig]:
        yield self._projected(prefix, hidden)
        yield self._output(prefix, hidden, in_parts=True)

    def _projected(self, prefix: str, hidden: int) -> LinearConfig:
        sections = self.inner_size, *self.mixed_sizes, self.heads
        rows = ((f"{prefix}in_proj", sum(sections)),)
        return LinearConfig(rows, hidden, self.bias, "rows", in_parts=False, sections=(sections,))

    def _output(self, prefix: str, hidden: int, *, in_parts: bool) -> LinearConfig:
        rows = ((f"{prefix}out_proj", hidden),)
        return LinearConfig(rows, self.inner_size, self.bias, "columns", in_parts)

    def check_shard(self, num_ranks: int) -> None:
        check_divides(num_ranks, "the groups of Mamba-2,", self.groups)

    def shard(self, num_ranks: int) -> MambaConfig:
        """Divide the groups among ranks, each with its heads, channels and states.

        The norm of a group is therefore computed by one rank.
        """
        return replace(self, groups=self.groups // num_ranks, heads=self.heads // num_ranks)

    def build(
        self,
        prefix: str,
        hidden: int,
        norm: RmsNormConfig,  # noqa: ARG002
        new: Allocator,
        *,
        in_parts: bool,
    ) -> Mamba:
        conv, heads = f"{prefix}conv1d", self.heads
        return Mamba(
            config=self,
            projected=new.linear(self._projected(prefix, hidden)),
            conv=build_conv(conv, self.mixed_sizes, self.conv_width, new, bias=self.conv_bias),
            a_log=build_vector(f"{prefix}A_log", heads, new, low=0.0, high=2.0),
            dt_bias=build_vector(f"{prefix}dt_bias", heads, new, low=-4.0, high=0.0),
            skip=build_vector(f"{prefix}D", heads, new),
            norm=build_vector(f"{prefix}norm.weight", self.inner_size, new, wide=False),
            output=new.linear(self._output(prefix, hidden, in_parts=in_parts)),
        )


@dataclass(frozen=True, slots=True)
class Mamba(Mixer):
    """A Mamba-2 with its tensors.

    H is the hidden size, Hs the number of heads, P the head size, C the number of channels.
    """

    config: MambaConfig
    projected: Linear  # (Hs P + C + Hs, H): gate, x B C, dt
    conv: Conv
    a_log: Vector  # (Hs,)
    dt_bias: Vector  # (Hs,)
    skip: Vector  # (Hs,)
    norm: Vector  # (Hs P,)
    output: Linear  # (H, Hs P)

    @property
    def takes_fp8(self) -> Scaling | None:
        return self.projected.takes_fp8

    def enter(
        self,
        step: LayerStep,
        x: Tensor | Fp8Rows,
        dtype: torch.dtype,  # noqa: ARG002
    ) -> Entered:
        """Compute the state space model's output and the gate, both (T, Hs P). Write the states."""
        ops, memory = step.ops, step.memory
        assert isinstance(memory, StateMemory)
        (state, rows), config = memory, self.config
        product = self.projected.product(ops, x)
        sizes = [config.inner_size, config.channels, config.heads]
        gate, xbc, dt = product.split(sizes, dim=1)  # type: ignore[no-untyped-call]
        xbc = ops.causal_conv(xbc, self.conv.weight, self.conv.bias, state.conv, rows)
        vectors = self.a_log.values, self.dt_bias.values, self.skip.values
        return ops.ssd(xbc, dt, *vectors, config.dt_limit, state.recurrence, rows), gate

    def leave(self, step: LayerStep, entered: Entered, outputs: Tensor | None) -> Tensor:
        values, gate = of_outputs(entered, outputs)
        config = self.config
        group = config.inner_size // config.groups
        normed = step.ops.gated_norm(values, gate, self.norm.values, config.eps, group, True)
        return self.output.product(step.ops, normed)
