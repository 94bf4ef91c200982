"""Adapters' products are added to the model's: any mix of slots, any rank, in one or several
launches.
"""

from __future__ import annotations

import pytest
import torch

from kernels.adapters.slots import SlotMatrices, TokenSlots
from kernels.ops import Ops, torch_ops
from tests.kernels.cases import relative_error

SIZE_IN = 72  # not a multiple of the kernel's depth
ROWS = (40, 24, 8)  # not multiples of the kernel's number of features
NUM_SLOTS = 4


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def filled(ranks: dict[int, int], rows: tuple[int, ...] = ROWS) -> SlotMatrices:
    """Return matrices with adapters of these ranks in their slots."""
    matrices = SlotMatrices.zeros(NUM_SLOTS, rows, SIZE_IN, max(ranks.values()), draw(1))
    for slot, rank in ranks.items():
        for part, count in enumerate(rows):
            matrices.load(slot, part, draw(rank, SIZE_IN + 0) + slot, draw(count, rank) - part)
    return matrices


def exact(
    product: torch.Tensor, x: torch.Tensor, matrices: SlotMatrices, slots: list[int]
) -> torch.Tensor:
    """Compute token by token in double precision."""
    added, rank = product.double().clone(), matrices.rank
    for token, slot in enumerate(slots):
        first = 0
        for part, count in enumerate(matrices.rows):
            a = matrices.a[slot, part * rank :][:rank].double()
            own = slice(first, first + count)
            added[token, own] += matrices.b[slot, own].double() @ (a @ x[token].double())
            first += count
    return added


@pytest.mark.parametrize("slots", [[1], [0, 0], [3, 1, 0, 1, 3, 3, 0], [2, 1] * 20 + [0] * 30])
@pytest.mark.parametrize("rows", [ROWS, (80,)])
def test_each_token_gets_its_own_adapter(ops: Ops, slots: list[int], rows: tuple[int, ...]) -> None:
    matrices = filled({1: 4, 2: 16, 3: 24}, rows)
    x, product = draw(len(slots), SIZE_IN), draw(len(slots), sum(rows))
    wanted = exact(product, x, matrices, slots)
    of_tokens = ops.of_tokens(torch.tensor(slots, dtype=torch.int32), NUM_SLOTS)
    assert isinstance(of_tokens.adapters, TokenSlots)
    got = ops.add_adapters(product, x, matrices, of_tokens.adapters)
    assert got is product
    assert relative_error(got, wanted) < 1e-5


def test_a_product_in_parts_gets_it_once(ops: Ops) -> None:
    matrices, slots = filled({2: 8}), torch.tensor([0, 2, 2], dtype=torch.int32)
    x, parts = draw(3, SIZE_IN), draw(2, 3, sum(ROWS))
    wanted = exact(parts.sum(0), x, matrices, slots.tolist())
    got = ops.add_adapters(parts, x, matrices, ops.order_slots(slots, NUM_SLOTS))
    assert relative_error(got.sum(0), wanted) < 1e-5


def test_a_slot_that_is_filled_again_keeps_nothing_of_the_one_before() -> None:
    ops, matrices = torch_ops(), filled({1: 16})
    x, slots = draw(2, SIZE_IN), ops.order_slots(torch.ones(2, dtype=torch.int32), NUM_SLOTS)
    before = ops.add_adapters(torch.zeros(2, sum(ROWS)), x, matrices, slots)
    matrices.clear(1)
    matrices.load(1, 2, draw(2, SIZE_IN), draw(ROWS[2], 2))
    after = ops.add_adapters(torch.zeros(2, sum(ROWS)), x, matrices, slots)
    assert before[:, : -ROWS[2]].any()  # positive control
    assert not after[:, : -ROWS[2]].any()
    assert after[:, -ROWS[2] :].any()
