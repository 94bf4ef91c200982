"""A mixture of experts with adapters, compared pair by pair, in every format of matrices."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.adapters.experts import ExpertSlots, first_slot
from kernels.adapters.slots import SlotMatrices
from kernels.experts import mixture
from kernels.experts.four_bit_matrices import FourBitMatrix, Kind
from kernels.experts.matrices import AnyMatrix
from kernels.experts.route import Routed
from kernels.norms.gate import RELU2, SILU, Gate
from kernels.ops import Ops
from tests.kernels.cases import relative_error
from tests.kernels.experts.four_bits import drawn
from tests.kernels.experts.test_mixture import (
    HIDDEN,
    KEEPS,
    NUM_EXPERTS,
    SIZE,
    Keep,
    bias,
    draw,
    matrices,
    routed_for,
)

SLOTS = [0, 2, 1, 2, 2, 0, 1]


def room(gate: Gate) -> ExpertSlots:
    """Make slots for two adapters of different ranks at every expert."""
    rows = (SIZE,) * gate.factors
    count = 1 + 2 * NUM_EXPERTS
    inner = SlotMatrices.zeros(count, rows, HIDDEN, 8, draw(1))
    down = SlotMatrices.zeros(count, (HIDDEN,), SIZE, 8, draw(1))
    for slot, rank in ((1, 8), (2, 3)):
        for matrices_ in (inner, down):
            for part, size in enumerate(matrices_.rows):
                a = draw(NUM_EXPERTS, rank, matrices_.a.shape[2]) * 0.1
                b = draw(NUM_EXPERTS, size, rank) * 0.1 * (1 + part)
                matrices_.load_several(first_slot(slot, NUM_EXPERTS), part, a, b)
    return ExpertSlots(inner, down)


def low_rank(x: Tensor, matrices_: SlotMatrices, slot: int, expert: int) -> Tensor:
    if not slot:
        return torch.zeros(sum(matrices_.rows), dtype=torch.float64)
    own = first_slot(slot, NUM_EXPERTS) + expert
    parts = matrices_.a[own].double().split(matrices_.rank)
    rows = matrices_.b[own].double().split(matrices_.rows)
    return torch.cat([b @ (a @ x.double()) for a, b in zip(parts, rows, strict=True)])


def naive(
    ops: Ops,
    x: Tensor,
    routed: Routed,
    gate_up: AnyMatrix,
    down: AnyMatrix,
    gate: Gate,
    slots: ExpertSlots,
) -> Tensor:
    """Compute (token, expert) pairs one by one in float64, with inputs rounded as the ops round
    them.
    """
    by = mixture.scaling_of(gate_up)

    def product(matrix: AnyMatrix, given: Tensor, expert: int) -> Tensor:
        kept = given if by is None else ops.to_fp8(given[None], by, None).dequantised()[0]
        shift = None if isinstance(matrix, FourBitMatrix) else bias(matrix, expert)
        return F.linear(kept.double(), matrix.dequantised(expert).double(), shift)

    out = torch.zeros(x.shape, dtype=torch.float64)
    for token, slot in enumerate(SLOTS):
        for expert, weight in zip(routed.experts[token], routed.weights[token], strict=True):
            one = int(expert)
            both = product(gate_up, x[token], one) + low_rank(x[token], slots.gate_up, slot, one)
            hidden = both.relu().square().float()
            if gate is SILU:
                inner, up = both.chunk(2, -1)
                hidden = (F.silu(inner) * up).float()
            outer = product(down, hidden, one) + low_rank(hidden, slots.down, slot, one)
            out[token] += float(weight) * outer
    return out


@pytest.mark.parametrize("gate", [SILU, RELU2], ids=["silu", "relu2"])
@pytest.mark.parametrize("keep", KEEPS)
def test_each_pair_gets_the_adapter_of_its_token_and_expert(
    ops: Ops, keep: Keep, gate: Gate
) -> None:
    gate_up, down = matrices(keep, gate.factors)
    expect(ops, gate_up, down, gate)


@pytest.mark.parametrize("kind", ["int4", "mxfp4"])
def test_experts_in_four_bits_have_them_too(ops: Ops, kind: Kind) -> None:
    gate_up, _ = drawn(kind, (NUM_EXPERTS, 2 * SIZE, HIDDEN))
    down, _ = drawn(kind, (NUM_EXPERTS, HIDDEN, SIZE))
    expect(ops, gate_up, down, SILU)


def expect(ops: Ops, gate_up: AnyMatrix, down: AnyMatrix, gate: Gate) -> None:
    x, routed, slots = draw(len(SLOTS), HIDDEN), routed_for(len(SLOTS)), room(gate)
    tokens = ops.of_tokens(torch.tensor(SLOTS, dtype=torch.int32), 3).adapters
    assert tokens is not None
    got = ops.adapted_mixture(x, routed, gate_up, down, gate, slots, tokens)
    # A value between two e4m3 numbers may be rounded to the other number.
    tolerance = 1e-2 if mixture.scaling_of(gate_up) else 1e-5
    assert relative_error(got, naive(ops, x, routed, gate_up, down, gate, slots)) < tolerance
    plain = ops.mixture(x, routed, gate_up, down, gate)
    without = torch.tensor(SLOTS) == 0
    whole = plain.sum(0) if plain.dim() == 3 else plain
    assert relative_error(got[without], whole[without]) < tolerance
    assert relative_error(got[~without], whole[~without]) > 0.1
