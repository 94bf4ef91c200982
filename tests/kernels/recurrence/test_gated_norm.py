"""The gated norm, compared with float64: gate before the norm, and after it."""

from __future__ import annotations

import pytest
import torch

from kernels.errors import UnsupportedShape
from kernels.ops import Ops
from tests.kernels.cases import poisoned_memory, relative_error
from tests.kernels.recurrence import naive
from tests.kernels.recurrence.layers import normal

EPS = 1e-6
ORDERS = pytest.mark.parametrize("gate_first", [False, True], ids=["gate after", "gate first"])


@ORDERS
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float16, 2e-3)])
@pytest.mark.parametrize(
    ("groups", "group", "shared"), [(3, 16, True), (1, 100, False), (5, 40, False), (2, 2048, True)]
)
def test_norms_each_group(
    ops: Ops,
    groups: int,
    group: int,
    shared: bool,
    gate_first: bool,
    dtype: torch.dtype,
    bound: float,
) -> None:
    columns = groups * group
    x, gate = (normal(3, columns + 9, seed=seed, dtype=dtype)[:, 4:-5] for seed in (1, 2))
    weight = normal(group if shared else columns, seed=3, dtype=dtype)
    with poisoned_memory():
        got = ops.gated_norm(x, gate, weight, EPS, group, gate_first)
    assert got.dtype == dtype
    assert relative_error(got, naive.gated_norm(x, gate, weight, EPS, group, gate_first)) < bound


@ORDERS
def test_a_weight_in_float32_rounds_once(ops: Ops, gate_first: bool) -> None:
    x, gate = (normal(9, 512, seed=seed, dtype=torch.float16) for seed in (1, 2))
    weight = normal(512, seed=3)
    got = ops.gated_norm(x, gate, weight, EPS, 512, gate_first)
    exact = naive.gated_norm(x, gate, weight, EPS, 512, gate_first)
    assert relative_error(got, exact.half().double()) < 3e-5
    twice = ops.gated_norm(x, gate, weight.half(), EPS, 512, gate_first)
    assert relative_error(twice, exact.half().double()) > 1e-4, "the control"


@ORDERS
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # the interpreter computes exp(200)
def test_large_gates(ops: Ops, gate_first: bool) -> None:
    x, gate = normal(2, 64, seed=1), torch.tensor([[-200.0], [200.0]]).repeat(1, 64)
    got = ops.gated_norm(x, gate, torch.ones(64), EPS, 64, gate_first)
    assert got.isfinite().all()
    assert not got[0].any()
    assert got[1].all(), "the control"


@ORDERS
def test_no_tokens_give_no_rows(ops: Ops, gate_first: bool) -> None:
    none = torch.empty(0, 64)
    assert ops.gated_norm(none, none, torch.ones(64), EPS, 16, gate_first).shape == (0, 64)


@ORDERS
def test_refuses_a_group_that_no_program_holds(ops: Ops, gate_first: bool) -> None:
    x = torch.zeros(1, 65_537)
    with pytest.raises(UnsupportedShape, match="65537"):
        ops.gated_norm(x, x, x[0], EPS, 65_537, gate_first)
