"""The GEMM with 4-bit integers, by either of its kernels, equals a GEMM of the dequantised
numbers.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.linear import int4_linear
from kernels.linear.int4_linear import MAX_ROWS, shares_of, written_out
from kernels.linear.int4_matrix import Int4Matrix, packed, unpacked
from kernels.linear.split_k import whole
from kernels.ops import Ops
from tests.kernels.cases import poisoned_memory, relative_error

WIDTH = 256
FEATURES = 164  # leaves the last strip partly empty
SHAPES = [(6144, 4096), (4096, 14_336), (28_672, 4096), (1040, 512)]


def matrix(
    features: int,
    width: int,
    group: int = 128,
    dtype: torch.dtype = torch.float16,
    device: str = "cpu",
    *,
    symmetric: bool = False,
) -> Int4Matrix:
    generator = torch.Generator(device).manual_seed(features + width + group)

    def integers(least: int, rows: int, columns: int) -> Tensor:
        return torch.randint(
            least, 16 + least, (rows, columns), generator=generator, device=device
        ).to(torch.uint8)

    groups = width // group
    scales = torch.rand(groups, features, generator=generator, device=device) + 0.1
    zeros = None if symmetric else integers(1, groups, features)  # GPTQ's zero points go up to 16
    values = packed(integers(0, features, width))
    return Int4Matrix(values, (scales / 4).to(dtype), zeros)


def draw(rows: int, width: int, dtype: torch.dtype = torch.float16, device: str = "cpu") -> Tensor:
    generator = torch.Generator(device).manual_seed(rows)
    return torch.randn(rows, width, generator=generator, device=device).to(dtype)


def truth(x: Tensor, weight: Int4Matrix) -> Tensor:
    return x.double() @ weight.dequantised(x.dtype).double().T


def test_words_keep_integers_and_their_places() -> None:
    integers = torch.arange(2 * WIDTH).view(2, WIDTH) % 16
    words = packed(integers)
    assert words.shape == (2, WIDTH // 4)
    assert int(words[0, 33]) == sum(
        int(integers[0, 128 + 1 + 32 * place]) << 4 * place for place in range(4)
    )
    assert torch.equal(unpacked(words), integers.short())


@pytest.mark.parametrize("group", [32, 64, 128])
def test_each_group_has_its_scale_and_zero_point(group: int) -> None:
    made = matrix(8, WIDTH, group)
    assert made.zeros is not None
    written, integers = made.dequantised(torch.float32), unpacked(made.values)
    for feature, column in ((0, 0), (7, group - 1), (3, group), (5, WIDTH - 1)):
        own = column // group, feature
        wanted = (int(integers[feature, column]) - int(made.zeros[own])) * float(made.scales[own])
        assert float(written[feature, column]) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("rows", [1, 17, 100, MAX_ROWS + 1])
@pytest.mark.parametrize(("group", "symmetric"), [(128, True), (128, False), (32, False)])
def test_every_number_of_rows(ops: Ops, rows: int, group: int, *, symmetric: bool) -> None:
    x, weight = draw(rows, WIDTH), matrix(FEATURES, WIDTH, group, symmetric=symmetric)
    got = ops.linear_int4(x, weight, None)
    assert (got.shape, got.dtype) == ((rows, FEATURES), torch.float16)
    assert relative_error(got, truth(x, weight)) < 1e-3


def test_parts_with_a_bias_add_up(ops: Ops) -> None:
    x, weight, bias = draw(3, 2048), matrix(FEATURES, 2048), draw(1, FEATURES)[0]
    assert shares_of(weight) == 2
    got = ops.linear_int4_split_k(x, weight, bias)
    assert relative_error(whole(got, x.dtype), truth(x, weight) + bias.double()) < 1e-3
    got = ops.linear_int4(x, weight, bias)
    assert relative_error(got, truth(x, weight) + bias.double()) < 1e-3


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("symmetric", [True, False])
def test_numbers_written_out_are_the_references_to_the_bit(
    ops: Ops, group: int, *, symmetric: bool
) -> None:
    weight = matrix(FEATURES, WIDTH, group, symmetric=symmetric)
    unit = torch.eye(WIDTH, dtype=torch.float16)  # many rows, and a few rows
    assert torch.equal(ops.linear_int4(unit, weight, None).T, weight.dequantised(unit.dtype))
    few = ops.linear_int4(unit[100:164], weight, None)
    assert torch.equal(few.T, weight.dequantised(unit.dtype)[:, 100:164])


def test_a_row_does_not_depend_on_its_neighbours(ops: Ops) -> None:
    x, weight = draw(9, WIDTH), matrix(FEATURES, WIDTH)
    alone = ops.linear_int4(x, weight, None)
    x[:4], x[5:] = 100.0, -7.0
    assert torch.equal(ops.linear_int4(x, weight, None)[4], alone[4])
    assert not torch.equal(ops.linear_int4(x, weight, None)[3], alone[3])


def test_float32_is_written_out(ops: Ops) -> None:
    x, weight = draw(5, WIDTH, torch.float32), matrix(FEATURES, WIDTH, dtype=torch.float32)
    assert relative_error(ops.linear_int4(x, weight, None), truth(x, weight)) < 1e-6


def test_no_rows(ops: Ops) -> None:
    assert ops.linear_int4(draw(0, WIDTH), matrix(FEATURES, WIDTH), None).shape == (0, FEATURES)


def test_rows_may_lie_apart(ops: Ops) -> None:
    x, weight = draw(5, 2 * WIDTH)[:, :WIDTH], matrix(FEATURES, WIDTH)
    assert relative_error(ops.linear_int4(x, weight, None), truth(x, weight)) < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 16, 17, 64, 65, 128, 129, 300])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_number_of_rows_on_the_device(
    shape: tuple[int, int], rows: int, dtype: torch.dtype
) -> None:
    weight, x = matrix(*shape, 128, dtype, "cuda"), draw(rows, shape[1], dtype, "cuda")
    bias = draw(1, shape[0], dtype, "cuda")[0]
    with poisoned_memory():
        plain = int4_linear.launch(x, weight, None)
        shifted = int4_linear.launch_split_k(x, weight, bias)
    assert torch.equal(written_out(weight, dtype), weight.dequantised(dtype))
    wanted = truth(x, weight)
    assert relative_error(plain, wanted) < 5e-3
    assert relative_error(whole(shifted, dtype), wanted + bias.double()) < 5e-3
