"""When a product is computed by the algorithm of the table, and when it is left to others."""

from __future__ import annotations

import ctypes
from functools import partial

import pytest
import torch
from torch import Tensor

from kernels import linear
from kernels.cublaslt import Algorithm, Config, Product
from kernels.errors import LibraryRefused
from kernels.ops import ops_for, triton_ops
from kernels.product_table import VERSION
from kernels.tuned_products import TunedProducts, configs, open_tuned_products, tuned_products

ROWS, FEATURES, WIDTH = 3, 8, 16
SHAPE = (ROWS, FEATURES, WIDTH)
CONFIG, OTHER = Config(1, 2, 0), Config(2, 2, 0)
CUDA = torch.device("cuda")
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


class Noting:
    """A `Library` that knows all algorithms but one, computes like torch, and notes products."""

    def __init__(self, unknown: Config | None = None, version: int = VERSION) -> None:
        self.version = version
        self.unknown = unknown
        self.multiplied: list[Product] = []

    def product(self, rows: int, features: int, width: int, config: Config) -> Product | None:
        sizes = ctypes.c_void_p(width), ctypes.c_void_p(rows), ctypes.c_void_p(features)
        return None if config == self.unknown else Product(Algorithm(), *sizes, 0)

    def multiply(self, product: Product, x: Tensor, weight: Tensor, out: Tensor) -> None:
        self.multiplied.append(product)
        torch.mm(x, weight.T, out=out)


class Others:
    """A linear layer that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        self.calls += 1
        return torch.nn.functional.linear(x, weight, bias)


def tensors(rows: int = ROWS, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, WIDTH).to(dtype), torch.randn(FEATURES, WIDTH).to(dtype)


def test_a_product_of_the_table_is_the_librarys() -> None:
    library, others = Noting(), Others()
    x, weight = tensors()
    got = TunedProducts(library, {SHAPE: CONFIG}).before(others)(x, weight, None)
    assert (len(library.multiplied), others.calls) == (1, 0)
    assert torch.equal(got, x @ weight.T)
    assert got.dtype == torch.bfloat16


def test_each_shape_has_its_own_product() -> None:
    library = Noting()
    tuned = TunedProducts(library, {SHAPE: CONFIG, (5, FEATURES, WIDTH): OTHER}).before(Others())
    for rows in (5, ROWS, 5):
        tuned(*tensors(rows), None)
    assert [product.x.value for product in library.multiplied] == [5, ROWS, 5]


@pytest.mark.parametrize("rows", [0, ROWS - 1, ROWS + 1])
def test_other_numbers_of_rows_are_left_to_others(rows: int) -> None:
    library, others = Noting(), Others()
    x, weight = tensors(rows)
    got = TunedProducts(library, {SHAPE: CONFIG}).before(others)(x, weight, None)
    assert (len(library.multiplied), others.calls) == (0, 1)
    assert torch.equal(got, x @ weight.T)


def test_another_weight_is_left_to_others() -> None:
    library, others = Noting(), Others()
    x, weight = tensors()
    TunedProducts(library, {SHAPE: CONFIG}).before(others)(x, weight[:-1], None)
    assert (len(library.multiplied), others.calls) == (0, 1)


def test_a_bias_is_left_to_others() -> None:
    library, others = Noting(), Others()
    x, weight = tensors()
    bias = torch.ones(FEATURES, dtype=torch.bfloat16)
    got = TunedProducts(library, {SHAPE: CONFIG}).before(others)(x, weight, bias)
    assert (len(library.multiplied), others.calls) == (0, 1)
    assert torch.equal(got, torch.nn.functional.linear(x, weight, bias))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_dtypes_are_left_to_others(dtype: torch.dtype) -> None:
    library, others = Noting(), Others()
    TunedProducts(library, {SHAPE: CONFIG}).before(others)(*tensors(dtype=dtype), None)
    assert (len(library.multiplied), others.calls) == (0, 1)


def test_an_input_with_gaps_is_left_to_others() -> None:
    library, others = Noting(), Others()
    wide, weight = torch.randn(ROWS, 2 * WIDTH).bfloat16(), tensors()[1]
    tuned = TunedProducts(library, {SHAPE: CONFIG}).before(others)
    tuned(wide[:, :WIDTH], weight, None)
    assert (len(library.multiplied), others.calls) == (0, 1)
    tuned(wide[:, :WIDTH].contiguous(), weight, None)
    assert (len(library.multiplied), others.calls) == (1, 1)


def test_what_the_library_refuses_is_left_to_others() -> None:
    library, others = Noting(unknown=CONFIG), Others()
    products = TunedProducts(library, {SHAPE: CONFIG, (5, FEATURES, WIDTH): OTHER})
    assert len(products) == 1
    products.before(others)(*tensors(), None)
    assert (len(library.multiplied), others.calls) == (0, 1)
    products.before(others)(*tensors(5), None)
    assert (len(library.multiplied), others.calls) == (1, 1)


def test_the_table_is_for_one_version_of_the_library() -> None:
    made = tuned_products(Noting)
    assert made is not None
    assert len(made) == len(configs()) > 0
    for version in (VERSION - 1, VERSION + 1):
        assert tuned_products(partial(Noting, version=version)) is None


def test_without_the_library_nothing_is_tuned() -> None:
    assert tuned_products(lambda: None) is None


def test_a_library_that_does_not_open_is_done_without() -> None:
    def refused() -> Noting:
        raise LibraryRefused("cublasLtCreate answered 1")

    assert tuned_products(refused) is None


def test_the_table_has_what_is_too_much_for_kernels_of_few_rows() -> None:
    for rows, features, width in configs():
        assert rows > linear.MAX_ROWS
        assert rows % 8 == features % 64 == width % 64 == 0


def test_without_a_gpu_nothing_is_tuned() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert open_tuned_products(CUDA) is None


@pytest.mark.gpu
def test_every_product_of_the_table_is_the_exact_one_rounded() -> None:
    products = _opened()
    assert len(products) == len(configs())
    others = Others()
    tuned = products.before(others)
    for rows, features, width in configs():
        x = torch.randn(rows, width, device=CUDA).bfloat16()
        weight = (torch.randn(features, width, device=CUDA) / 64).bfloat16()
        exact = x.float() @ weight.float().T
        error = (tuned(x, weight, None).float() - exact).norm() / exact.norm()
        assert error < 0.004, (rows, features, width)
    assert others.calls == 0


@pytest.mark.gpu
def test_the_engines_ops_have_the_table() -> None:
    _opened()
    rows, features, width = next(iter(configs()))
    x = torch.randn(rows, width, device=CUDA).bfloat16()
    weight = (torch.randn(features, width, device=CUDA) / 64).bfloat16()
    plain, tuned = triton_ops(), ops_for(CUDA)
    assert plain.linear is not tuned.linear
    for one, other in (
        (tuned.linear, plain.linear),
        (tuned.linear_in_parts, plain.linear_in_parts),
    ):
        torch.testing.assert_close(one(x, weight, None), other(x, weight, None))


def _opened() -> TunedProducts:
    if not HOPPER:
        pytest.skip("the table is for Hopper")
    products = open_tuned_products(CUDA)
    if products is None:
        pytest.skip("the table is for another version of the library")
    return products
