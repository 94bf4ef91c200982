"""Recurrent layers, for tests that hold for all of them: inputs, an op, and a reference.

A layer draws the inputs of tokens, and its weights once. A batch lays out rows of tokens, with
states in a pool whose other slots are poison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from kernels.ops import Ops
from kernels.recurrence.state_rows import StateRows
from tests.kernels.recurrence import naive

SLOTS, LAYERS = 12, 2


class StateLayer(Protocol):
    """A recurrent layer with fixed weights."""

    @property
    def state_shape(self) -> tuple[int, ...]:
        """Return the shape of one state slot."""

    @property
    def state_dtype(self) -> torch.dtype: ...

    def draw(self, tokens: int, seed: int) -> tuple[Tensor, ...]:
        """Draw the inputs of tokens, each (T, ...)."""

    def apply(self, ops: Ops, inputs: Sequence[Tensor], state: Tensor, rows: StateRows) -> Tensor:
        """Run the op, which updates `state`; return its outputs."""

    def truth(self, inputs: Sequence[Tensor], state: Tensor) -> naive.Advanced:
        """Return the reference's outputs and the state after one row, in float64."""


def normal(
    *shape: int, seed: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device).to(dtype)


@dataclass(frozen=True, slots=True)
class ConvLayer:
    """A causal convolution."""

    channels: int = 40
    width: int = 4
    has_bias: bool = True
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.channels, self.width - 1

    @property
    def state_dtype(self) -> torch.dtype:
        return self.dtype

    def draw(self, tokens: int, seed: int) -> tuple[Tensor, ...]:
        return (normal(tokens, self.channels, seed=seed, dtype=self.dtype, device=self.device),)

    def apply(self, ops: Ops, inputs: Sequence[Tensor], state: Tensor, rows: StateRows) -> Tensor:
        (x,) = inputs
        return ops.causal_conv(x, *_conv_weights(self), state, rows)

    def truth(self, inputs: Sequence[Tensor], state: Tensor) -> naive.Advanced:
        (x,) = inputs
        return naive.conv(x, *_conv_weights(self), state)


@dataclass(frozen=True, slots=True)
class DeltaLayer:
    """A gated delta rule."""

    key_heads: int = 1
    heads: int = 2
    keys: int = 16
    values: int = 32
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    spread: float = 1.0  # spread of the inputs from which decays are computed
    repeats: bool = False  # whether all tokens have the same key

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.heads, self.keys, self.values

    @property
    def state_dtype(self) -> torch.dtype:
        return torch.float32

    def draw(self, tokens: int, seed: int) -> tuple[Tensor, ...]:
        width = 2 * self.key_heads * self.keys + self.heads * self.values
        qkv = normal(tokens, width, seed=seed, device=self.device)
        if self.repeats:
            own = slice(self.key_heads * self.keys, 2 * self.key_heads * self.keys)
            qkv[:, own] = normal(1, width, seed=0, device=self.device)[:, own]
        a, b = normal(2, tokens, self.heads, seed=seed + 1000, device=self.device)
        return qkv.to(self.dtype), (a * self.spread).to(self.dtype), b.to(self.dtype)

    def apply(self, ops: Ops, inputs: Sequence[Tensor], state: Tensor, rows: StateRows) -> Tensor:
        qkv, a, b = inputs
        return ops.gated_delta(qkv, a, b, *_delta_weights(self), state, rows)

    def truth(self, inputs: Sequence[Tensor], state: Tensor) -> naive.Advanced:
        qkv, a, b = inputs
        return naive.gated_delta(qkv, a, b, *_delta_weights(self), state)


@dataclass(frozen=True, slots=True)
class SsdLayer:
    """Mamba-2's state space model."""

    heads: int = 4
    groups: int = 2
    head_dim: int = 32
    state_size: int = 16
    dt_limit: tuple[float, float] = (0.0, torch.inf)
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    spread: float = 1.0  # spread of the inputs from which time steps are computed

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.heads, self.head_dim, self.state_size

    @property
    def state_dtype(self) -> torch.dtype:
        return torch.float32

    def draw(self, tokens: int, seed: int) -> tuple[Tensor, ...]:
        width = self.heads * self.head_dim + 2 * self.groups * self.state_size
        xbc = normal(tokens, width, seed=seed, device=self.device)
        dt = normal(tokens, self.heads, seed=seed + 1000, device=self.device) * self.spread
        return xbc.to(self.dtype), dt.to(self.dtype)

    def apply(self, ops: Ops, inputs: Sequence[Tensor], state: Tensor, rows: StateRows) -> Tensor:
        xbc, dt = inputs
        return ops.ssd(xbc, dt, *_ssd_weights(self), state, rows)

    def truth(self, inputs: Sequence[Tensor], state: Tensor) -> naive.Advanced:
        xbc, dt = inputs
        return naive.ssd(xbc, dt, *_ssd_weights(self), state)


@cache
def _conv_weights(layer: ConvLayer) -> tuple[Tensor, Tensor | None]:
    like = {"dtype": layer.dtype, "device": layer.device}
    weight = normal(layer.channels, layer.width, seed=1, **like)  # type: ignore[arg-type]
    bias = normal(layer.channels, seed=2, **like)  # type: ignore[arg-type]
    return weight, bias if layer.has_bias else None


@cache
def _delta_weights(layer: DeltaLayer) -> tuple[Tensor, Tensor]:
    a_log = normal(layer.heads, seed=3, device=layer.device) - 1
    return a_log, normal(layer.heads, seed=4, device=layer.device)


@cache
def _ssd_weights(layer: SsdLayer) -> tuple[Tensor, Tensor, Tensor, tuple[float, float]]:
    a_log, dt_bias, skip = normal(3, layer.heads, seed=5, device=layer.device)
    return a_log - 1, dt_bias - 1, skip, layer.dt_limit


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a recurrent layer: the inputs of all tokens, the pool (S, ...) of states, and the
    rows.
    """

    inputs: tuple[Tensor, ...]
    state: Tensor
    rows: StateRows

    def of_row(self, row: int) -> tuple[Tensor, ...]:
        """Return the inputs of the row's tokens."""
        begin, end = self.rows.row_starts[row : row + 2].tolist()
        return tuple(each[begin:end] for each in self.inputs)

    def before(self, row: int) -> Tensor:
        """Return the state with which the row starts."""
        tokens = len(self.of_row(row)[0])
        if int(self.rows.context_lens[row]) == tokens:
            return torch.zeros_like(self.state[0])
        return self.state[int(self.rows.read_slots[row])]

    def copied(self) -> Batch:
        """Return the batch with a copy of its pool."""
        return replace(self, state=_strided(self.state.clone()))


def make_batch(
    layer: StateLayer, rows: Sequence[tuple[int, int]], *, in_place: bool = True, seed: int = 0
) -> Batch:
    """Make a batch from rows of (new tokens, context); leading one-token rows are decodes.

    Unread slots contain NaN. Slots are in mixed order.
    """
    count = len(rows)
    device = layer.draw(1, 0)[0].device
    order = torch.randperm(SLOTS + 2 * count, generator=torch.Generator().manual_seed(seed)).int()
    read, write = order[:count], order[count : 2 * count]
    pool = torch.full((len(order), *layer.state_shape), torch.nan, dtype=layer.state_dtype)
    for row, (new, context) in enumerate(rows):
        if context > new:
            drawn = normal(*layer.state_shape, seed=seed + 77 + row)
            pool[int(read[row])] = drawn.to(layer.state_dtype)
    starts = torch.tensor([0] + [new for new, _ in rows]).cumsum(0).int()
    decodes = next((at for at, (new, _) in enumerate(rows) if new != 1), count)
    state_rows = StateRows(
        starts.to(device),
        torch.tensor([context for _, context in rows], dtype=torch.int32, device=device),
        read.to(device),
        (read if in_place else write).to(device),
        torch.ones_like(read, device=device),
        torch.ones_like(read, device=device),
        decodes,
    )
    inputs = tuple(_wider(each) for each in layer.draw(int(starts[-1]), seed + 11))
    return Batch(inputs, _strided(pool.to(device)), state_rows)


def _wider(tokens: Tensor) -> Tensor:
    """Return the tensor as a slice of a wider tensor, as from a fused projection, with NaN around
    it.
    """
    around = torch.full((tokens.shape[0], tokens.shape[1] + 24), torch.nan).to(tokens)
    around[:, 16:-8] = tokens
    return around[:, 16:-8]


def _strided(pool: Tensor) -> Tensor:
    """Return the tensor as one layer's slice of a pool of several layers."""
    layers = torch.full((pool.shape[0], LAYERS, *pool.shape[1:]), torch.nan).to(pool)
    layers[:, 1] = pool
    return layers[:, 1]
