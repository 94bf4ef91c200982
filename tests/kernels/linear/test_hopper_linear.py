"""The Hopper GEMM gives the right product for few rows on a GPU. Other shapes go to the library."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.linear import hopper_linear, linear
from kernels.linear.split_k import whole
from tests.kernels.cases import poisoned_memory, relative_error

# The shapes of an 8B and a 0.6B model, shapes with a partly empty last strip or share, and one
# tile.
SHAPES = [(6144, 4096), (4096, 14_336), (28_672, 4096), (1024, 3072), (1000, 1088), (130, 64)]
SHAPES.append((40_001, 1024))  # several strips for each program, the last strip partly empty


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def test_a_cpu_is_not_served() -> None:
    assert not hopper_linear.serves(torch.ones(1, 64).half(), torch.ones(128, 64).half())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_computes_the_product(
    shape: tuple[int, int], rows: int, dtype: torch.dtype
) -> None:
    weight, x = draw(*shape, dtype=dtype, seed=1), draw(rows, shape[1], dtype=dtype)
    if not hopper_linear.serves(x, weight):
        pytest.skip("not for this device")
    with poisoned_memory():
        got = hopper_linear.gemm(x, weight)
    truth = x.double() @ weight.double().T
    assert whole(got, dtype).shape == truth.shape
    assert relative_error(whole(got, dtype), truth) < (1e-3 if dtype == torch.float16 else 1e-2)


@pytest.mark.gpu
def test_the_input_is_read_behind_the_kernel_that_writes_it() -> None:
    weight = draw(4096, 4096, dtype=torch.bfloat16, seed=1) / 64
    start = draw(2, 4096, dtype=torch.bfloat16)
    if not hopper_linear.serves(start, weight):
        pytest.skip("not for this device")

    def chain() -> Tensor:
        x = start
        for _ in range(8):
            x = whole(linear.launch_split_k(x, weight, None), x.dtype)
        return x

    wanted = start
    for _ in range(8):
        wanted = (wanted.double() @ weight.double().T).to(torch.bfloat16)
    chain()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = chain()
    for _ in range(20):
        graph.replay()
    assert relative_error(got, wanted.double()) < 5e-2


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "width", "dtype"),
    [(9, 4096, torch.bfloat16), (1, 4100, torch.bfloat16), (1, 4096, torch.float32)],
)
def test_others_are_left_to_the_library(rows: int, width: int, dtype: torch.dtype) -> None:
    x, weight = draw(rows, width, dtype=dtype), draw(4096, width, dtype=dtype, seed=1)
    assert not hopper_linear.serves(x, weight)
    got = linear.launch_split_k(x, weight, None)
    assert got.shape == (rows, 4096)
    assert relative_error(got, x.double() @ weight.double().T) < 1e-2
