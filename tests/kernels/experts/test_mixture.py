"""A mixture computes for each token the weighted sum of its experts' MLP outputs."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.e4m3 import E4M3, LARGEST
from kernels.experts import add_experts, mixture, order, products, route
from kernels.experts.matrices import ExpertMatrix
from kernels.experts.route import Routed
from kernels.experts.tiles import FEW, MANY, MORE, SOME, tile_for
from kernels.linear import fp8_rows
from kernels.linear.fp8_matrix import BLOCK, scaled_to_e4m3
from kernels.linear.split_k import whole
from kernels.norms import gate_mul
from kernels.norms.gate import RELU2, SILU, Gate
from kernels.ops import Ops
from tests.kernels.cases import poisoned_memory, relative_error

NUM_EXPERTS, TOP_K, HIDDEN, SIZE = 4, 2, 256, 128
OF_EACH_TILE = (9, 20, 60, 200)  # numbers of tokens, one for each tile size
LIMITED = Gate(limit=1.0, alpha=1.702)
Keep = Callable[[Tensor], ExpertMatrix]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def plain(matrix: Tensor) -> ExpertMatrix:
    return ExpertMatrix(matrix)


def with_bias(matrix: Tensor) -> ExpertMatrix:
    return ExpertMatrix(matrix, None, draw(*matrix.shape[:2]))


def by_channel(matrix: Tensor) -> ExpertMatrix:
    values, scales = zip(*[scaled_to_e4m3(one) for one in matrix], strict=True)
    return ExpertMatrix(torch.stack(values), torch.stack(scales))


def by_block(matrix: Tensor) -> ExpertMatrix:
    count, rows, columns = matrix.shape
    scales = torch.rand(count, -(-rows // BLOCK), columns // BLOCK) * 0.01 + 0.001
    return ExpertMatrix((200 * matrix).clamp(-LARGEST, LARGEST).to(E4M3), scales)


KEEPS: list[Keep] = [plain, with_bias, by_channel, by_block]


def matrices(keep: Keep, factors: int = 2) -> tuple[ExpertMatrix, ExpertMatrix]:
    gate_up = keep(draw(NUM_EXPERTS, factors * SIZE, HIDDEN) * HIDDEN**-0.5)
    return gate_up, keep(draw(NUM_EXPERTS, HIDDEN, SIZE, seed=1) * SIZE**-0.5)


def routed_for(tokens: int) -> Routed:
    return route.reference(draw(tokens, NUM_EXPERTS), TOP_K, renormalise=True)


def naive(
    x: Tensor, routed: Routed, gate_up: ExpertMatrix, down: ExpertMatrix, gate: Gate
) -> Tensor:
    """Compute token by token in float64, with inputs rounded as for matrices of this format."""
    by = mixture.scaling_of(gate_up)
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token, row in enumerate(x):
        given = row[None] if by is None else fp8_rows.reference(row[None], by).dequantised()
        for expert, weight in zip(routed.experts[token], routed.weights[token], strict=True):
            one = int(expert)
            both = F.linear(given.double(), gate_up.dequantised(one).double(), bias(gate_up, one))
            hidden = both.relu().square().float()
            if gate is SILU:
                inner, up = both.chunk(2, -1)
                hidden = (F.silu(inner) * up).float()
            if by is not None:
                hidden = fp8_rows.reference(hidden, by).dequantised()
            product = F.linear(hidden.double(), down.dequantised(one).double(), bias(down, one))
            out[token] += float(weight) * product[0]
    return out


def bias(matrix: ExpertMatrix, expert: int) -> Tensor | None:
    return None if matrix.bias is None else matrix.bias[expert].double()


@pytest.mark.parametrize("gate", [SILU, RELU2], ids=["silu", "relu2"])
@pytest.mark.parametrize("keep", KEEPS)
def test_the_reference_is_the_weighted_sum(keep: Keep, gate: Gate) -> None:
    gate_up, down = matrices(keep, gate.factors)
    x, routed = draw(12, HIDDEN), routed_for(12)
    got = mixture.reference(x, routed, gate_up, down, gate)
    # A value between two e4m3 numbers may be rounded to the other number.
    tolerance = 1e-5 if gate_up.scales is None else 1e-2
    assert relative_error(got, naive(x, routed, gate_up, down, gate)) < tolerance


def test_a_limited_gate() -> None:
    both = torch.tensor([[3.0, -3.0, 0.5, 5.0, 0.25, -5.0]])
    got = gate_mul.reference(both, LIMITED)
    gate, up = torch.tensor([1.0, -3.0, 0.5]), torch.tensor([1.0, 0.25, -1.0])
    torch.testing.assert_close(got[0], gate * torch.sigmoid(1.702 * gate) * (up + 1))


def test_experts_are_added_in_their_order() -> None:
    """Add experts in their order: only then 1 + 2^-24 - 1 is 0."""
    products_ = torch.tensor([1.0, 2.0**-24, -1.0])[:, None, None]
    assert add_experts.reference(products_).tolist() == [[0.0]]
    assert add_experts.reference(products_[[0, 2, 1]]).tolist() == [[2.0**-24]]


def test_each_number_of_tokens_has_another_tile() -> None:
    tiles = [tile_for(tokens * TOP_K, NUM_EXPERTS) for tokens in OF_EACH_TILE]
    assert tiles == [FEW, SOME, MORE, MANY]


@pytest.mark.parametrize(
    ("keep", "gate"),
    [(plain, SILU), (with_bias, SILU), (plain, LIMITED), (with_bias, LIMITED), (with_bias, RELU2)],
)
@pytest.mark.parametrize("tokens", [1, *OF_EACH_TILE])
def test_every_tile(ops: Ops, tokens: int, keep: Keep, gate: Gate) -> None:
    gate_up, down = matrices(keep, gate.factors)
    x, routed = draw(tokens, HIDDEN), routed_for(tokens)
    got = whole(ops.mixture(x, routed, gate_up, down, gate), x.dtype)
    wanted = mixture.reference(x, routed, gate_up, down, gate)
    assert relative_error(got, wanted.double()) < 1e-5


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="interpreted")
@pytest.mark.parametrize(
    ("keep", "gate"), [(by_channel, SILU), (by_block, SILU), (by_channel, RELU2), (by_block, RELU2)]
)
@pytest.mark.parametrize("tokens", OF_EACH_TILE)
def test_products_in_fp8(tokens: int, keep: Keep, gate: Gate) -> None:
    """Compare fp8 products GEMM by GEMM, since the interpreter rounds differently between GEMMs."""
    gate_up, down = matrices(keep, gate.factors)
    by, routed = mixture.scaling_of(gate_up), routed_for(tokens)
    assert by is not None
    tile = tile_for(tokens * TOP_K, NUM_EXPERTS)
    tiles = order.reference(routed.experts, NUM_EXPERTS, tile.rows)
    x = fp8_rows.reference(draw(tokens, HIDDEN), by)
    got = products.gated_launch(x, routed, tiles, tile, gate_up, gate, torch.float32)
    wanted = products.gated_reference(x, routed, gate_up, gate, torch.float32)
    assert relative_error(got, wanted.double()) < 1e-5
    hidden = fp8_rows.reference(wanted, by)
    got = products.down_launch(hidden, routed, tiles, tile, down, torch.float32)
    wanted = products.down_reference(hidden, routed, down, torch.float32)
    assert relative_error(got, wanted.double()) < 1e-5


def test_no_tokens(ops: Ops) -> None:
    gate_up, down = matrices(plain)
    got = ops.mixture(torch.empty(0, HIDDEN), routed_for(0), gate_up, down, SILU)
    assert whole(got, torch.float32).shape == (0, HIDDEN)


def on_device(matrix: ExpertMatrix, dtype: torch.dtype) -> ExpertMatrix:
    values = matrix.values.cuda()
    scales, shift = matrix.scales, matrix.bias
    return ExpertMatrix(
        values.to(dtype) if scales is None else values,
        None if scales is None else scales.cuda(),
        None if shift is None else shift.cuda().to(dtype),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("gate", [SILU, RELU2], ids=["silu", "relu2"])
@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("tokens", [1, 9, 40, 65, 120, 420, 5000])
def test_on_the_device(tokens: int, keep: Keep, gate: Gate) -> None:
    gate_up, down = (on_device(one, torch.bfloat16) for one in matrices(keep, gate.factors))
    x, routed = draw(tokens, HIDDEN).cuda().bfloat16(), routed_for(tokens)
    routed = Routed(routed.experts.cuda(), routed.weights.cuda())
    with poisoned_memory():
        got = whole(mixture.launch(x, routed, gate_up, down, gate), torch.bfloat16)
    wanted = mixture.reference(x, routed, gate_up, down, gate)
    assert relative_error(got, wanted.double()) < 2e-2


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [16, 200])
def test_on_the_device_a_row_does_not_depend_on_its_neighbours(tokens: int) -> None:
    gate_up, down = (on_device(one, torch.bfloat16) for one in matrices(plain))
    x, logits = draw(tokens, HIDDEN).cuda().bfloat16(), draw(tokens, NUM_EXPERTS).cuda()

    def first(others: Tensor) -> Tensor:
        mixed, mixed_logits = x.clone(), logits.clone()
        mixed[1:], mixed_logits[1:] = x[1:][others], logits[1:][others]
        chosen = route.launch(mixed_logits, TOP_K, True)
        return whole(mixture.launch(mixed, chosen, gate_up, down, SILU), x.dtype)[0]

    usual = first(torch.arange(tokens - 1))
    assert torch.equal(first(torch.arange(tokens - 1).flip(0)), usual)
    assert torch.equal(first(torch.zeros(tokens - 1, dtype=torch.int64)), usual)
