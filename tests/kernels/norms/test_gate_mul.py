"""The gate of the MLP, compared with float64."""

from __future__ import annotations

import pytest
import torch

from kernels.norms.gate import GELU_TANH, RELU2, SILU, Gate
from kernels.ops import Ops
from tests.kernels import naive
from tests.kernels.cases import poisoned_memory, relative_error


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float16, 1e-3)])
@pytest.mark.parametrize("size", [1, 48, 1023, 1024, 1025, 3000])
def test_gates(ops: Ops, size: int, dtype: torch.dtype, bound: float) -> None:
    gate_up = draw(3, 2 * size, dtype=dtype)
    with poisoned_memory():
        got = ops.gate_mul(gate_up, SILU)
    assert got.shape == (3, size)
    assert got.dtype == dtype
    assert relative_error(got, naive.gate_mul(gate_up)) < bound


@pytest.mark.parametrize("gate", [GELU_TANH, Gate(limit=1.5, alpha=1.702)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_other_gates(ops: Ops, gate: Gate, dtype: torch.dtype) -> None:
    gate_up = 3 * draw(3, 200, dtype=dtype)
    got, bound = ops.gate_mul(gate_up, gate), 1e-6 if dtype == torch.float32 else 1e-3
    assert relative_error(got, naive.gate_mul(gate_up, gate)) < bound
    assert relative_error(got, naive.gate_mul(gate_up, SILU)) > 0.01, "the control"


@pytest.mark.parametrize("size", [2, 48, 1025])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_without_a_gate(ops: Ops, size: int, dtype: torch.dtype) -> None:
    up = draw(3, size + 2, dtype=dtype)[:, 2:]
    with poisoned_memory():
        got = ops.gate_mul(up, RELU2)
    assert got.shape == (3, size)
    bound = 1e-6 if dtype == torch.float32 else 1e-3
    assert relative_error(got, naive.gate_mul(up, RELU2)) < bound


def test_a_gate_that_is_far_open_or_shut(ops: Ops) -> None:
    gate_up = torch.tensor([[8.0, -8.0, 5.0, 5.0]])
    got = ops.gate_mul(gate_up, GELU_TANH)[0]
    assert got[0] == 40.0
    assert got[1].abs() < 1e-15


def test_takes_rows_out_of_a_wider_tensor(ops: Ops) -> None:
    gate_up = draw(3, 100)[:, 10:74]
    assert relative_error(ops.gate_mul(gate_up, SILU), naive.gate_mul(gate_up)) < 1e-6


def test_gate_comes_before_up(ops: Ops) -> None:
    shut, open_wide = torch.full((1, 4), -80.0), torch.full((1, 4), 80.0)
    ones = torch.ones(1, 4)
    assert ops.gate_mul(torch.cat((shut, ones), 1), SILU).abs().max() < 1e-30
    assert torch.equal(ops.gate_mul(torch.cat((open_wide, ones), 1), SILU), open_wide)


def test_no_tokens_give_no_rows(ops: Ops) -> None:
    assert ops.gate_mul(torch.empty(0, 64), SILU).shape == (0, 32)
