"""cuBLASLt by ctypes: what it computes on a GPU, and where it is found."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.cublaslt import Config, CublasLt, open_cublaslt, path_in
from kernels.errors import LibraryRefused

CUDA = torch.device("cuda")
PLAIN = Config(20, 2, 0)  # a tile of 128 x 128, by clusters of 2 x 1
COUNTING = Config(503, 3, 5)  # its programs count the tiles that they have taken
UNKNOWN = Config(60_000, 2, 0)
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
MAPS = """\
7f00-7f01 r-xp 00000000 00:1f 101  /usr/lib/libc.so.6
7f02-7f03 r--p 00000000 00:1f 102  /opt/torch lib/libcublas.so.13
7f04-7f05 r--p 00000000 00:1f 103  /opt/torch lib/libcublasLt.so.13
7f06-7f07 rw-p 00000000 00:00 0
7f08-7f09 r--p 00000000 00:1f 103  /opt/torch lib/libcublasLt.so.13
"""


def test_the_library_is_found_among_a_process_maps() -> None:
    assert path_in(MAPS) == "/opt/torch lib/libcublasLt.so.13"


def test_a_process_without_the_library_has_none() -> None:
    assert path_in(MAPS.replace("Lt", "")) is None


@pytest.fixture(scope="module")
def library() -> CublasLt:
    if not HOPPER:
        pytest.skip("the algorithms are Hopper's")
    opened = open_cublaslt()
    assert opened is not None
    return opened


def operands(rows: int, features: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(rows, width, device=CUDA).bfloat16()
    weight = (torch.randn(features, width, device=CUDA) / 64).bfloat16()
    return x, weight, x.new_full((rows, features), torch.nan)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [120, 256])
def test_a_product_is_the_exact_one_rounded(library: CublasLt, rows: int) -> None:
    x, weight, out = operands(rows, 512, 1024)
    made = library.product(rows, 512, 1024, PLAIN)
    assert made is not None
    library.multiply(made, x, weight, out)
    torch.testing.assert_close(out.double(), x.double() @ weight.double().T, rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
def test_a_product_is_recorded_and_replayed(library: CublasLt) -> None:
    x, weight, out = operands(128, 512, 1024)
    made = library.product(128, 512, 1024, PLAIN)
    assert made is not None
    library.multiply(made, x, weight, out)
    expected = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        library.multiply(made, x, weight, out)
    out.fill_(torch.nan)
    graph.replay()
    assert torch.equal(out, expected)


@pytest.mark.gpu
def test_what_a_product_leaves_in_its_scratch_does_not_matter(library: CublasLt) -> None:
    x, weight, out = operands(8192, 4096, 1024)
    made = library.product(8192, 4096, 1024, COUNTING)
    assert made is not None
    assert made.scratch_bytes > 0
    exact = x.float() @ weight.float().T
    for _ in range(3):
        library.multiply(made, x, weight, out.fill_(torch.nan))
        torch.testing.assert_close(out.float(), exact, rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
def test_there_is_no_product_by_an_algorithm_that_does_not_exist(library: CublasLt) -> None:
    assert library.product(128, 512, 1024, UNKNOWN) is None
    assert library.product(128, 512, 1024, PLAIN) is not None


@pytest.mark.gpu
def test_an_error_of_the_library_is_raised(library: CublasLt) -> None:
    x, weight, out = operands(128, 512, 1024)
    made = library.product(128, 512, 1024, PLAIN)
    assert made is not None
    made.algorithm.data[0] = 2**63  # of no family of algorithms
    with pytest.raises(LibraryRefused, match="Matmul"):
        library.multiply(made, x, weight, out)


@pytest.mark.gpu
def test_tiles_are_those_that_an_algorithm_may_have(library: CublasLt) -> None:
    assert PLAIN.tile in library.tiles()
    assert UNKNOWN.tile not in library.tiles()
