"""rms_norm and add_rms_norm, compared with float64. Their roundings are compared with the
definition.
"""

from __future__ import annotations

import pytest
import torch

from kernels.errors import UnsupportedShape
from kernels.norms import rms_norm
from kernels.ops import Ops
from tests.kernels import naive
from tests.kernels.cases import poisoned_memory, relative_error

EPS = 1e-5
SIZES = [1, 16, 100, 257, 1024]


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float16, 1e-3)])
@pytest.mark.parametrize("size", SIZES)
def test_norms_each_row(ops: Ops, size: int, dtype: torch.dtype, bound: float) -> None:
    x, weight = draw(5, size, dtype=dtype), draw(size, dtype=dtype, seed=1)
    with poisoned_memory():
        got = ops.rms_norm(x, weight, EPS)
    assert got.dtype == dtype
    assert relative_error(got, naive.rms_norm(x, weight, EPS)) < bound


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float16, 1e-3)])
@pytest.mark.parametrize("size", SIZES)
def test_adds_then_norms(ops: Ops, size: int, dtype: torch.dtype, bound: float) -> None:
    x, residual = draw(5, size, dtype=dtype), draw(5, size, dtype=dtype, seed=1)
    weight = draw(size, dtype=dtype, seed=2)
    with poisoned_memory():
        normed, total = ops.add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(total, x + residual)
    assert relative_error(normed, naive.rms_norm(total, weight, EPS)) < bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("num_parts", [1, 2, 5])
def test_adds_what_comes_in_parts(ops: Ops, num_parts: int, dtype: torch.dtype) -> None:
    parts, residual = draw(num_parts, 5, 80), draw(5, 80, dtype=dtype, seed=1)
    weight = draw(80, dtype=dtype, seed=2)
    with poisoned_memory():
        normed, total = ops.add_rms_norm(parts, residual, weight, EPS)
    assert total.dtype == normed.dtype == dtype
    assert relative_error(total, parts.double().sum(0) + residual.double()) < 2e-3
    assert relative_error(normed, naive.rms_norm(total, weight, EPS)) < 1e-3


def test_a_weight_in_float32_rounds_once(ops: Ops) -> None:
    """Round only the exact result, not the number before it is multiplied by its float32 weight."""
    x, residual = draw(5, 257, dtype=torch.float16), draw(5, 257, dtype=torch.float16, seed=1)
    weight = 1 + 0.1 * draw(257, seed=2)
    normed, total = ops.add_rms_norm(x, residual, weight, EPS)
    for got, source in ((ops.rms_norm(x, weight, EPS), x), (normed, total)):
        assert got.dtype == torch.float16
        exact = naive.rms_norm(source, weight, EPS)
        assert relative_error(got, exact.half().double()) < 2e-5
        twice = ops.rms_norm(source, weight.half(), EPS)
        assert relative_error(twice, exact.half().double()) > 1e-4, "the control"


def test_leaves_its_inputs_alone(ops: Ops) -> None:
    x, residual, weight = draw(3, 64), draw(3, 64, seed=1), draw(64, seed=2)
    before = x.clone(), residual.clone()
    ops.rms_norm(x, weight, EPS)
    ops.add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


def test_takes_rows_out_of_a_wider_tensor(ops: Ops) -> None:
    wide, weight = draw(4, 200), draw(64, seed=1)
    x, residual = wide[:, 10:74], wide[:, 100:164]
    assert relative_error(ops.rms_norm(x, weight, EPS), naive.rms_norm(x, weight, EPS)) < 1e-6
    normed, total = ops.add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(total, x + residual)
    assert relative_error(normed, naive.rms_norm(x + residual, weight, EPS)) < 1e-6


def test_a_row_of_zeros_stays_zero(ops: Ops) -> None:
    got = ops.rms_norm(torch.zeros(2, 64), draw(64), EPS)
    assert torch.equal(got, torch.zeros(2, 64))


def test_no_tokens_give_no_rows(ops: Ops) -> None:
    empty = torch.empty(0, 64)
    assert ops.rms_norm(empty, draw(64), EPS).shape == (0, 64)
    normed, total = ops.add_rms_norm(empty, empty, draw(64), EPS)
    assert normed.shape == total.shape == (0, 64)


def test_one_bad_row_does_not_spread(ops: Ops) -> None:
    x = draw(3, 64)
    x[1, 7] = torch.nan
    got = ops.rms_norm(x, draw(64, seed=1), EPS)
    assert got[1].isnan().all()
    assert got[[0, 2]].isfinite().all()


def test_the_weight_meets_the_rounded_quotient() -> None:
    x, weight = draw(8, 128, dtype=torch.bfloat16), draw(128, dtype=torch.bfloat16, seed=1)
    wide = x.to(torch.float32)
    quotient = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    rounded_first = weight * quotient.to(torch.bfloat16)
    rounded_last = (weight.float() * quotient).to(torch.bfloat16)
    got = rms_norm.reference(x, weight, EPS)
    assert torch.equal(got, rounded_first)
    assert not torch.equal(got, rounded_last)


def test_refuses_a_row_that_no_program_holds(ops: Ops) -> None:
    x, weight = torch.zeros(1, 65_537), torch.zeros(65_537)
    with pytest.raises(UnsupportedShape, match="65537"):
        ops.rms_norm(x, weight, EPS)
    with pytest.raises(UnsupportedShape, match="65537"):
        ops.add_rms_norm(x, x, weight, EPS)
    assert ops.rms_norm(x[:, 1:], weight[1:], EPS).shape == (1, 65_536)
