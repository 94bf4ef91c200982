"""The GEMM in fp8 equals a GEMM of the dequantised numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.e4m3 import E4M3, LARGEST
from kernels.linear import fp8_linear, fp8_rows
from kernels.linear.fp8_matrix import BLOCK, Fp8Matrix, scaled_to_e4m3
from kernels.linear.fp8_rows import Fp8Rows
from kernels.linear.split_k import whole
from kernels.ops import Ops
from tests.kernels.cases import poisoned_memory, relative_error

ROWS = [1, 3, 8, 16, 33, 64, 65, 128, 129, 200, 256, 257]
# The shapes of an 8B model and of a model with few heads, and a shape whose last strip is partly
# empty.
SHAPES = [(6144, 4096), (4096, 14_336), (28_672, 4096), (1024, 1024), (1040, 512)]
# several strips for each program, with few rows and with many rows
SHAPES += [(17_008, 512), (34_000, 512)]


def matrix(features: int, width: int, device: str = "cpu", *, by_block: bool) -> Fp8Matrix:
    generator = torch.Generator(device).manual_seed(features + width)
    drawn = torch.randn(features, width, generator=generator, device=device)
    if not by_block:
        return Fp8Matrix(*scaled_to_e4m3(drawn), by_block=False)
    sizes = -(-features // BLOCK), width // BLOCK
    scales = torch.rand(sizes, generator=generator, device=device) + 0.1
    return Fp8Matrix((100 * drawn).clamp(-LARGEST, LARGEST).to(E4M3), scales, by_block=True)


def rows(count: int, width: int, device: str = "cpu", *, by_group: bool) -> Fp8Rows:
    generator = torch.Generator(device).manual_seed(count)
    x = torch.randn(count, width, generator=generator, device=device)
    return fp8_rows.reference(x * torch.linspace(1, 9, count, device=device)[:, None],
                              "group" if by_group else "token")  # fmt: skip


def truth(x: Fp8Rows, weight: Fp8Matrix) -> Tensor:
    return x.dequantised().double() @ weight.dequantised().double().T


@pytest.mark.parametrize("by_block", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_product_of_the_numbers_written_out(ops: Ops, by_block: bool, has_bias: bool) -> None:
    x, weight = rows(5, 256, by_group=by_block), matrix(200, 256, by_block=by_block)
    bias = torch.linspace(-9, 9, 200) if has_bias else None
    got = ops.linear_fp8(x, weight, bias, torch.float32)
    wanted = truth(x, weight) + (0 if bias is None else bias.double())
    assert relative_error(got, wanted) < 1e-5
    assert relative_error(whole(ops.linear_fp8_split_k(x, weight, bias, got.dtype), got.dtype),
                          wanted) < 1e-5  # fmt: skip


def test_a_block_has_its_own_scale() -> None:
    scales = torch.tensor([[1.0, 2.0], [4.0, 8.0]])
    weight = Fp8Matrix(torch.ones(BLOCK + 4, 2 * BLOCK).to(E4M3), scales, by_block=True)
    written = weight.dequantised()
    assert written[0, 0] == 1
    assert written[BLOCK - 1, BLOCK] == 2
    assert written[BLOCK, BLOCK - 1] == 4
    assert written[BLOCK + 3, -1] == 8


def test_a_channel_keeps_its_largest_number() -> None:
    weight = torch.randn(7, 64) * torch.logspace(-4, 4, 7)[:, None]
    weight[3] = 0.0
    values, scales = scaled_to_e4m3(weight)
    kept = values.float() * scales
    torch.testing.assert_close(kept.abs().amax(1), weight.abs().amax(1))
    assert relative_error(kept, weight.double()) < 0.04


@pytest.mark.gpu
@pytest.mark.parametrize("by_block", [False, True])
@pytest.mark.parametrize("count", ROWS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_number_of_rows_on_the_device(
    shape: tuple[int, int], count: int, by_block: bool
) -> None:
    weight = matrix(*shape, "cuda", by_block=by_block)
    x = rows(count, shape[1], "cuda", by_group=by_block)
    bias = torch.randn(shape[0], device="cuda").bfloat16()
    with poisoned_memory():
        plain = fp8_linear.launch(x, weight, None, torch.bfloat16)
        shifted = fp8_linear.launch_split_k(x, weight, bias, torch.bfloat16)
    wanted = truth(x, weight)
    assert plain.shape == wanted.shape
    assert relative_error(plain, wanted) < 5e-3
    assert relative_error(whole(shifted, torch.bfloat16), wanted + bias.double()) < 5e-3
