"""Activations in fp8 are rounded by half a step at most, alike in kernels and reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.e4m3 import E4M3, LARGEST
from kernels.linear import fp8_rows
from kernels.linear.fp8_rows import GROUP, Fp8Rows, Scaling
from kernels.norms import add_rms_norm, gate_mul
from kernels.norms.gate import SILU
from kernels.ops import Ops

SCALINGS: list[Scaling] = ["token", "group"]
STEP = 2.0**-3  # relative distance between neighbours in e4m3, which has 3 bits of mantissa


def draw(rows: int, width: int, device: str = "cpu") -> Tensor:
    """Draw rows of several magnitudes: one has only zeros, one has a number far above all
    others.
    """
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(rows, width, generator=generator) * torch.logspace(-3, 2, rows)[:, None]
    x[1], x[2, 3] = 0.0, 1e4
    return x.to(device)


@pytest.mark.parametrize("by", SCALINGS)
def test_a_number_is_kept_to_half_a_step(by: Scaling) -> None:
    x = draw(6, 3 * GROUP)
    kept = fp8_rows.reference(x, by)
    assert kept.values.dtype == E4M3
    assert kept.scales.shape == (6, 1 if by == "token" else 3)
    least = kept.scales.repeat_interleave(x.shape[1] // kept.scales.shape[1], 1) * 2.0**-9
    assert ((kept.dequantised() - x).abs() <= x.abs() * (STEP / 2) * 1.0001 + least).all()


@pytest.mark.parametrize("by", SCALINGS)
def test_the_largest_number_of_a_scale_is_448(by: Scaling) -> None:
    x = draw(6, 2 * GROUP)
    kept = fp8_rows.reference(x, by)
    groups = kept.values.float().abs().view(6, kept.scales.shape[1], -1).amax(-1)
    assert (groups[[0, 2, 3, 4, 5]] == LARGEST).all()
    assert (groups[1] == 0).all(), "of zeros"
    assert torch.isfinite(kept.scales).all()
    assert (kept.scales > 0).all()


def test_a_static_scale_cuts_off_what_is_larger() -> None:
    x = torch.tensor([[1.0, -2.0, 900.0, -900.0]])
    kept = fp8_rows.reference(x, "token", torch.tensor([0.5]))
    assert kept.dequantised().tolist() == [[1.0, -2.0, 224.0, -224.0]]
    assert kept.scales.tolist() == [[0.5]]


@pytest.mark.parametrize("by", SCALINGS)
def test_a_row_does_not_depend_on_its_neighbours(by: Scaling) -> None:
    x = draw(6, 2 * GROUP)
    whole, alone = fp8_rows.reference(x, by), fp8_rows.reference(x[3:4], by)
    assert torch.equal(whole.dequantised()[3:4], alone.dequantised())


def expect_near(got: Fp8Rows, wanted: Fp8Rows) -> None:
    """Compare numbers; allow half a number, since the interpreter loses a carry when it rounds
    up.
    """
    torch.testing.assert_close(got.scales, wanted.scales)
    values, right = got.values.float(), wanted.values.float()
    near = (values - right).abs() <= right.abs() * STEP + 2.0**-9
    assert (near | (values * 2 == right)).all()
    assert near.float().mean() > 0.9


@pytest.mark.parametrize("width", [GROUP, 3 * GROUP])
@pytest.mark.parametrize("by", SCALINGS)
def test_every_op_that_quantises(ops: Ops, by: Scaling, width: int) -> None:
    x, residual = draw(5, width), draw(5, width).flip(0)
    weight, gate_up = torch.linspace(0.5, 2.0, width), draw(5, 2 * width).clamp(-50, 50)
    expect_near(ops.to_fp8(x, by, None), fp8_rows.reference(x, by))
    normed, total = ops.add_rms_norm_fp8(x, residual, weight, 1e-5, by)
    wanted, wanted_total = add_rms_norm.reference_fp8(x, residual, weight, 1e-5, by)
    expect_near(normed, wanted)
    torch.testing.assert_close(total, wanted_total)
    expect_near(ops.gate_mul_fp8(gate_up, SILU, by), gate_mul.reference_fp8(gate_up, SILU, by))


def test_a_static_scale_on_the_device(ops: Ops) -> None:
    x, scale = draw(5, GROUP), torch.tensor([0.25])
    expect_near(ops.to_fp8(x, "token", scale), fp8_rows.reference(x, "token", scale))


def test_no_rows(ops: Ops) -> None:
    assert ops.to_fp8(torch.empty(0, GROUP), "group", None).scales.shape == (0, 1)


def expect_same(got: Fp8Rows, wanted: Fp8Rows) -> None:
    assert torch.equal(got.scales, wanted.scales)
    assert torch.equal(got.values.view(torch.int8), wanted.values.view(torch.int8))


@pytest.mark.gpu
@pytest.mark.parametrize("width", [GROUP, 4096, 14_336])
@pytest.mark.parametrize("by", SCALINGS)
def test_on_the_device_bits_are_those_of_the_reference(by: Scaling, width: int) -> None:
    x = draw(9, width, "cuda").bfloat16()
    expect_same(fp8_rows.launch(x, by), fp8_rows.reference(x, by))
    residual, weight = x.flip(0), torch.rand(width, device="cuda").bfloat16()
    normed, total = add_rms_norm.launch(x, residual, weight, 1e-5)
    fused, fused_total = add_rms_norm.launch_fp8(x, residual, weight, 1e-5, by)
    expect_same(fused, fp8_rows.reference(normed, by))
    assert torch.equal(fused_total, total)
    gate_up = draw(9, 2 * width, "cuda").bfloat16()
    gated = fp8_rows.reference(gate_mul.launch(gate_up, SILU), by)
    expect_same(gate_mul.launch_fp8(gate_up, SILU, by), gated)
