"""The linear layer is right with PyTorch's product, and with the kernel for few rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels.linear.linear import MAX_ROWS, MIN_STRIPS, launch, on_cpu
from kernels.ops import Ops
from tests.kernels.cases import relative_error

STRIP = 64
WIDTH = 256


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).half()


@pytest.mark.parametrize("rows", [1, 3, 16, MAX_ROWS, MAX_ROWS + 1])
@pytest.mark.parametrize("has_bias", [True, False])
def test_every_number_of_rows(ops: Ops, rows: int, has_bias: bool) -> None:
    features = MIN_STRIPS * STRIP + 24  # leaves the last strip partly empty
    x, weight = draw(rows, WIDTH), draw(features, WIDTH)
    bias = draw(features) if has_bias else None
    got = ops.linear(x, weight, bias)
    wide = None if bias is None else bias.double()
    assert got.shape == (rows, features)
    assert got.dtype == torch.float16
    assert relative_error(got, F.linear(x.double(), weight.double(), wide)) < 1e-3


@pytest.mark.parametrize("rows", range(1, 7))
@pytest.mark.parametrize("has_bias", [True, False])
def test_few_rows_in_float32_on_a_cpu(rows: int, has_bias: bool) -> None:
    x, weight = draw(rows, WIDTH).float(), draw(100, WIDTH).float()
    bias = draw(100).float() if has_bias else None
    got = on_cpu(x, weight, bias)
    wide = None if bias is None else bias.double()
    assert got.is_contiguous()
    assert relative_error(got, F.linear(x.double(), weight.double(), wide)) < 1e-6


@pytest.mark.parametrize(
    ("rows", "width", "features"), [(0, WIDTH, 4096), (4, 200, 4096), (4, WIDTH, 100)]
)
def test_shapes_that_the_kernel_is_not_for_are_left_to_torch(
    ops: Ops, rows: int, width: int, features: int
) -> None:
    x, weight = draw(rows, width), draw(features, width)
    assert torch.equal(ops.linear(x, weight, None), F.linear(x, weight))


def test_rows_may_lie_apart(ops: Ops) -> None:
    x, weight = draw(5, 2 * WIDTH)[:, :WIDTH], draw(MIN_STRIPS * STRIP, WIDTH)
    got = ops.linear(x, weight, None)
    assert relative_error(got, F.linear(x.double(), weight.double())) < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [MAX_ROWS + 1, 64, 112, 113])
def test_whichever_front_chooses_the_product_is_right_and_the_choice_is_put_back(
    rows: int,
) -> None:
    usual = torch.backends.cuda.preferred_blas_library()
    x, weight = (draw(size, 4096).cuda() for size in (rows, 6144))
    got = launch(x, weight, None)
    assert relative_error(got, F.linear(x.double(), weight.double())) < 1e-3
    assert torch.backends.cuda.preferred_blas_library() == usual
