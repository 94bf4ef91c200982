"""GEMMs of experts in four bits for Hopper give the products of the dequantised numbers.

PyTorch on a CPU runs the kernel. `test_four_bits` tests the kernel on a device, including its own
tile for many pairs.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.experts import hopper_four_bit, mixture, order, products, route
from kernels.experts.four_bit_matrices import ZERO_BITS, FourBitMatrix, Kind, scale_of
from kernels.experts.tiles import FOUR_BIT_MANY, FOUR_BIT_OVERLAPPED, four_bit_tiles_for
from kernels.launch.capability import HOPPER
from kernels.norms import gate_mul
from kernels.norms.gate import GELU_TANH, RELU2, SILU, Activation, Gate
from tests.doubles.kernels.torch_gluon import gluon_in_torch
from tests.kernels.cases import poisoned_memory, relative_error
from tests.kernels.experts.four_bits import drawn

EXPERTS, TOP_K, TOKENS = 3, 2, 150
LIMITED = Gate(limit=1.0, alpha=1.702)
# (columns, rows). Columns: fewer than 128, a multiple of 128, and multiples with remainders. Rows:
# some of these numbers leave the last tile partly empty.
SHAPES = [(96, 160), (256, 288), (320, 128), (608, 64)]


def scale_of_place(
    words: Tensor, dtype: torch.dtype, place: int, is_mxfp4: bool, _: int
) -> tuple[Tensor, Tensor]:
    """Compute in PyTorch the result of the kernel's function of the same name."""
    if is_mxfp4:
        return torch.exp2((words >> 8 * place & 0xFF).float() - 127), words
    return scale_of(words), (words & ZERO_BITS).float()


def numbers(
    words: Tensor,
    scale: Tensor,
    zero: Tensor,
    dtype: torch.dtype,
    place: int,
    is_mxfp4: bool,
    _: int,
) -> Tensor:
    """Compute in PyTorch the result of the kernel's function of the same name."""
    wide = words.int()
    if not is_mxfp4:
        return (((wide >> 4 * place & 15) - zero[:, None]) * scale[:, None]).to(dtype)
    bits = (wide << 3 * place) & 0x81C0
    if place == 3:
        bits = (wide << 1 & 0x8000) | (wide >> 5 & 0x0100) | (wide >> 4 & 0x00C0)
    return ((bits << 16).view(torch.float32) * 2.0**126 * scale[:, None]).to(dtype)


def gated(
    gate: Tensor, up: Tensor, limit: Tensor, alpha: Tensor, act: Activation, is_limited: bool
) -> Tensor:
    """Compute in PyTorch the result of the kernel's function of the same name."""
    how = Gate(limit=float(limit), alpha=float(alpha)) if is_limited else Gate(act=act)
    return gate_mul.reference(torch.cat((gate, up)).T, how).T


def chosen() -> route.Routed:
    """Choose the first expert for most of the pairs, and the last expert for no pair."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(TOKENS, EXPERTS + 1, generator=generator)
    logits[:, 0] += 3
    logits[:, -1] -= 100
    return route.reference(logits, TOP_K, renormalise=True)


def multiplied(x: Tensor, routed: route.Routed, matrix: FourBitMatrix, gate: Gate | None) -> Tensor:
    tiles = order.reference(routed.experts, matrix.num_experts, FOUR_BIT_OVERLAPPED.rows)
    with (
        poisoned_memory(),
        gluon_in_torch(
            hopper_four_bit,
            kernel="product_kernel",
            numbers=numbers,
            scale_of_place=scale_of_place,
            gated=gated,
        ),
    ):
        if gate is None:
            how = FOUR_BIT_OVERLAPPED.down
            return products.down_launch(x, routed, tiles, how, matrix, x.dtype)
        how = FOUR_BIT_OVERLAPPED.inner(gate.factors)
        return products.gated_launch(x, routed, tiles, how, matrix, gate, x.dtype)


@pytest.mark.parametrize(("kind", "group"), [("mxfp4", 32), ("int4", 32), ("int4", 64)])
@pytest.mark.parametrize(("columns", "rows"), SHAPES)
def test_products(columns: int, rows: int, kind: Kind, group: int) -> None:
    columns = columns // group * group
    routed, gate = chosen(), LIMITED if kind == "mxfp4" else SILU
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(TOKENS * TOP_K, columns, generator=generator).half()
    shape = EXPERTS + 1, 2 * rows, columns
    matrix, _ = drawn(kind, shape, group, torch.float16, bias=kind == "mxfp4")
    got = multiplied(x[:TOKENS], routed, matrix, gate)
    wanted = products.gated_reference(x[:TOKENS], routed, matrix, gate, torch.float32)
    assert relative_error(got, wanted.double()) < 1e-3
    got = multiplied(x, routed, matrix, None)
    wanted = products.down_reference(x, routed, matrix, torch.float32)
    assert relative_error(got, wanted.double()) < 1e-3


def test_without_a_gate_it_multiplies_twice_as_many_rows() -> None:
    matrix, _ = drawn("int4", (EXPERTS + 1, 328, 160), 32, torch.float16, bias=True)
    x, routed = torch.randn(TOKENS, 160).half(), chosen()
    got = multiplied(x, routed, matrix, RELU2)
    wanted = products.gated_reference(x, routed, matrix, RELU2, torch.float32)
    assert got.shape == (TOKENS * TOP_K, 328)
    assert relative_error(got, wanted.double()) < 1e-3


def test_a_gate_of_another_kind_shows() -> None:
    """Apply another gate, GeGLU: the results are right, and differ from those of SiLU (positive
    control).
    """
    matrix, _ = drawn("int4", (EXPERTS + 1, 128, 128), 128, torch.float16)
    x, routed = torch.randn(TOKENS, 128).half(), chosen()
    got = multiplied(x, routed, matrix, GELU_TANH).double()
    wanted = products.gated_reference(x, routed, matrix, GELU_TANH, torch.float32)
    assert relative_error(got, wanted.double()) < 1e-3
    other = products.gated_reference(x, routed, matrix, SILU, torch.float32)
    assert relative_error(got, other.double()) > 0.05


def test_many_pairs_on_hopper_alone_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, _ = drawn("mxfp4", (2, 64, 128), 32, torch.bfloat16)
    assert mixture.tiles_of(matrix, 1000) == FOUR_BIT_MANY
    monkeypatch.setattr(hopper_four_bit, "capability", lambda _: HOPPER)
    assert mixture.tiles_of(matrix, 1000) == FOUR_BIT_MANY  # numbers on a CPU are not packed
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    assert mixture.tiles_of(matrix, 1000) == FOUR_BIT_OVERLAPPED
    assert mixture.tiles_of(matrix, 20) == four_bit_tiles_for(20, 2)
    assert mixture.tiles_of(replace(matrix, dtype=torch.float16), 1000) == FOUR_BIT_MANY
