"""A mixture of experts with adapters: each expert has low-rank matrices of each adapter.

    pair of token and expert    slot: 1 + (slot of the token - 1) * E + expert; 0: no adapter
    inner   x of each pair -> gate_up, + B A x -> gate
    outer   down, times the pair's weight, + B A of the weighted input -> sum over a token's pairs

For the low-rank matrices, each expert has slots of its own. The low-rank products can therefore be
computed like those of other matrices (`low_rank`), with pairs instead of tokens. The inner product
is written to memory before the gate is applied. A mixture without adapters does not need this
memory traffic.

Elsewhere: the weight formats (`kernels.experts.mixture`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.adapters import low_rank
from kernels.adapters.slots import SlotMatrices, TokenSlots
from kernels.experts import add_experts, mixture, order, products
from kernels.experts.matrices import AnyMatrix
from kernels.experts.route import Routed
from kernels.linear import fp8_rows
from kernels.norms import gate_mul
from kernels.norms.gate import Gate


@dataclass(frozen=True, slots=True)
class ExpertSlots:
    """The adapters' low-rank matrices for `gate_up` and `down`.

    An adapter in slot s of the tokens has E slots here, one per expert, from 1 + (s - 1) E on.
    """

    gate_up: SlotMatrices
    down: SlotMatrices


AdaptedMixture = Callable[
    [Tensor, Routed, AnyMatrix, AnyMatrix, Gate, ExpertSlots, TokenSlots], Tensor
]
"""A function like MixtureOp that also applies the adapters in the tokens' slots -> (T, H)."""


def first_slot(slot: int, num_experts: int) -> int:
    """Return the slot in `ExpertSlots` of an adapter's first expert."""
    return 1 + (slot - 1) * num_experts


def slots_of_pairs(routed: Routed, tokens: TokenSlots, num_experts: int) -> Tensor:
    """Return the slot of each (token, expert) pair, (T k,) int32."""
    slots = tokens.slots[:, None]
    own = (slots - 1) * num_experts + routed.experts + 1
    return own.masked_fill(slots == 0, 0).flatten()


def reference(
    x: Tensor,
    routed: Routed,
    gate_up: AnyMatrix,
    down: AnyMatrix,
    gate: Gate,
    room: ExpertSlots,
    tokens: TokenSlots,
) -> Tensor:
    """Compute the mixture of x (T, H) -> (T, H) of the same dtype. Plain PyTorch in float32."""
    own = slots_of_pairs(routed, tokens, gate_up.num_experts)
    pairs = TokenSlots(own, room.gate_up.num_slots)
    spread = x.repeat_interleave(routed.experts.shape[1], 0)
    by = mixture.scaling_of(gate_up)
    inputs = spread if by is None else fp8_rows.reference(spread, by)
    inner = _by_pair(products.down_reference(inputs, _unweighted(routed), gate_up, x.dtype))
    hidden = gate_mul.reference(low_rank.reference(inner, spread, room.gate_up, pairs), gate)
    inputs = hidden if by is None else fp8_rows.reference(hidden, by)
    outer = _by_pair(products.down_reference(inputs, routed, down, torch.float32))
    low_rank.reference(outer, _weighted(hidden, routed), room.down, pairs)
    return add_experts.reference(_by_choice(outer, routed)).to(x.dtype)


def launch(
    x: Tensor,
    routed: Routed,
    gate_up: AnyMatrix,
    down: AnyMatrix,
    gate: Gate,
    room: ExpertSlots,
    tokens: TokenSlots,
) -> Tensor:
    """Compute `reference` on the device."""
    pairs = launch_pairs(slots_of_pairs(routed, tokens, gate_up.num_experts), room)
    of = mixture.tiles_of(gate_up, routed.experts.numel())
    spread = x.repeat_interleave(routed.experts.shape[1], 0)
    tiles = order.launch(routed.experts, gate_up.num_experts, of.rows)
    by = mixture.scaling_of(gate_up)
    inputs = spread if by is None else fp8_rows.launch(spread, by)
    inner = _by_pair(
        products.down_launch(inputs, _unweighted(routed), tiles, of.down, gate_up, x.dtype)
    )
    hidden = gate_mul.launch(low_rank.launch(inner, spread, room.gate_up, pairs), gate)
    inputs = hidden if by is None else fp8_rows.launch(hidden, by)
    outer = _by_pair(products.down_launch(inputs, routed, tiles, of.down, down, torch.float32))
    low_rank.launch(outer, _weighted(hidden, routed), room.down, pairs)
    return add_experts.launch(_by_choice(outer, routed)).to(x.dtype)


def launch_pairs(slots: Tensor, room: ExpertSlots) -> TokenSlots:
    """Order pairs by their `slots` (P,) int32 on the device, for `low_rank.launch`."""
    count = room.gate_up.num_slots
    rows = low_rank.rows_of_tile(slots.numel(), count)
    return TokenSlots(slots, count, order.by_sorting(slots, count, rows))


def _unweighted(routed: Routed) -> Routed:
    return Routed(routed.experts, torch.ones_like(routed.weights))


def _weighted(hidden: Tensor, routed: Routed) -> Tensor:
    return (hidden * routed.weights.view(-1, 1)).to(hidden.dtype)


def _by_pair(products: Tensor) -> Tensor:
    """Reorder (k, T, N) -> (T k, N)."""
    return products.transpose(0, 1).reshape(-1, products.shape[2])


def _by_choice(products: Tensor, routed: Routed) -> Tensor:
    """Reorder (T k, N) -> (k, T, N)."""
    return products.view(*routed.experts.shape, -1).transpose(0, 1).contiguous()
