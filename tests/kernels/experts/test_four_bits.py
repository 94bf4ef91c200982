"""GEMMs of experts in four bits are right for every number, every tile, and a lone row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.experts import hopper_four_bit, mixture, order, products, route
from kernels.experts.four_bit_matrices import FourBitMatrix, Kind, codes_of, words_of
from kernels.experts.matrices import ExpertMatrix
from kernels.experts.order import PairTiles
from kernels.experts.route import Routed
from kernels.experts.tiles import (
    FOUR_BIT_FEW,
    FOUR_BIT_LONE,
    FOUR_BIT_MANY,
    FOUR_BIT_MORE,
    FOUR_BIT_OVERLAPPED,
    FOUR_BIT_SOME,
    MixtureTiles,
    four_bit_tiles_for,
)
from kernels.linear.split_k import whole
from kernels.norms.gate import RELU2, SILU, Gate
from kernels.ops import Ops
from tests.kernels.cases import poisoned_memory, relative_error
from tests.kernels.experts.four_bits import drawn, moved

NUM_EXPERTS, TOP_K, HIDDEN, SIZE = 4, 2, 160, 96  # HIDDEN and SIZE are not multiples of 128
OF_EACH_TILE = (1, 10, 45, 150, 350)  # numbers of tokens, one for each tile size
LIMITED = Gate(limit=1.0, alpha=1.702)
KINDS: list[tuple[Kind, int]] = [("mxfp4", 32), ("int4", 32), ("int4", 64), ("int4", 128)]
FORMS = pytest.mark.parametrize(("kind", "group"), KINDS)


def layer(
    kind: Kind,
    group: int,
    dtype: torch.dtype = torch.float32,
    *,
    bias: bool = False,
    factors: int = 2,
) -> tuple[FourBitMatrix, FourBitMatrix]:
    hidden, size = (HIDDEN, SIZE) if group == 32 else (256, 128)
    gate_up, _ = drawn(kind, (NUM_EXPERTS, factors * size, hidden), group, dtype, bias=bias)
    down, _ = drawn(kind, (NUM_EXPERTS, hidden, size), group, dtype, bias=bias)
    return gate_up, down


def inputs(tokens: int, hidden: int, dtype: torch.dtype) -> tuple[Tensor, Routed]:
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, hidden, generator=generator).to(dtype)
    logits = torch.randn(tokens, NUM_EXPERTS, generator=generator)
    return x, route.reference(logits, TOP_K, renormalise=True)


@pytest.mark.parametrize("kind", ["mxfp4", "int4"])
def test_words_keep_every_code_at_every_place(kind: Kind) -> None:
    codes = torch.arange(256 * 4).view(4, 256) * 7 % 16
    words = words_of(codes.byte(), kind)
    assert words.shape == (2, 4, 32)
    assert torch.equal(codes_of(words, kind), codes.int())
    short = words_of(codes[:, :200].byte(), kind)
    assert torch.equal(codes_of(short, kind)[:, :200], codes[:, :200].int())
    assert not codes_of(short, kind)[:, 200:].any()


@FORMS
def test_numbers_are_those_of_their_codes_and_scales(kind: Kind, group: int) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        matrix, wanted = drawn(kind, (2, 8, 256), group, dtype)
        got = torch.stack([matrix.dequantised(expert) for expert in range(2)])
        assert torch.equal(got, wanted.to(dtype).float())


def test_each_number_of_tokens_has_another_tile() -> None:
    tiles = [four_bit_tiles_for(tokens * TOP_K, NUM_EXPERTS) for tokens in OF_EACH_TILE]
    assert tiles == [
        FOUR_BIT_LONE, FOUR_BIT_FEW, FOUR_BIT_SOME, FOUR_BIT_MORE, FOUR_BIT_MANY,
    ]  # fmt: skip
    assert four_bit_tiles_for(1000, 1, is_float32=True) == FOUR_BIT_FEW


@FORMS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_every_tile(ops: Ops, kind: Kind, group: int, dtype: torch.dtype) -> None:
    gate = LIMITED if kind == "mxfp4" else SILU
    gate_up, down = layer(kind, group, dtype, bias=kind == "mxfp4")
    for tokens in OF_EACH_TILE if kind == "mxfp4" and dtype == torch.float16 else (1, 10):
        x, routed = inputs(tokens, gate_up.columns, dtype)
        got = whole(ops.mixture(x, routed, gate_up, down, gate), dtype)
        wanted = mixture.reference(x, routed, gate_up, down, gate)
        assert relative_error(got, wanted.double()) < (1e-5 if dtype == torch.float32 else 2e-3)


def test_every_tile_without_a_gate(ops: Ops) -> None:
    gate_up, down = layer("int4", 32, torch.float16, bias=True, factors=1)
    for tokens in OF_EACH_TILE:
        x, routed = inputs(tokens, gate_up.columns, torch.float16)
        got = whole(ops.mixture(x, routed, gate_up, down, RELU2), torch.float16)
        wanted = mixture.reference(x, routed, gate_up, down, RELU2)
        assert relative_error(got, wanted.double()) < 2e-3


def test_a_mixture_in_four_bits_is_that_of_its_numbers() -> None:
    in_four_bits = layer("mxfp4", 32, bias=True)
    plain = [ExpertMatrix(written_out(one), None, one.bias) for one in in_four_bits]
    x, routed = inputs(12, HIDDEN, torch.float32)
    wanted = mixture.reference(x, routed, plain[0], plain[1], LIMITED)
    assert torch.equal(mixture.reference(x, routed, *in_four_bits, LIMITED), wanted)


def written_out(matrix: FourBitMatrix) -> Tensor:
    return torch.stack([matrix.dequantised(one) for one in range(matrix.num_experts)])


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "group", "dtype"),
    [
        ("mxfp4", 32, torch.bfloat16),
        ("mxfp4", 32, torch.float16),
        ("int4", 128, torch.bfloat16),
        ("int4", 32, torch.float16),
    ],
    ids=str,
)
def test_numbers_on_the_device_are_the_references_to_the_bit(
    kind: Kind, group: int, dtype: torch.dtype
) -> None:
    """Compare single numbers on the device, from products of unit vectors, with the reference bit
    by bit.
    """
    matrix, _ = drawn(kind, (1, 192, 256), group, dtype)
    unit, tokens = torch.eye(256, dtype=dtype, device="cuda"), 256
    routed = Routed(
        torch.zeros(tokens, 1, dtype=torch.int32, device="cuda"),
        torch.ones(tokens, 1, device="cuda"),
    )
    rows = torch.arange(tokens, dtype=torch.int32, device="cuda").view(-1, FOUR_BIT_FEW.rows)
    tiles = PairTiles(rows, torch.zeros(len(rows), dtype=torch.int32, device="cuda"))
    got = products.down_launch(unit, routed, tiles, FOUR_BIT_FEW.down, moved(matrix, "cuda"), dtype)
    assert torch.equal(got[0].T.cpu().float(), matrix.dequantised(0))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "group", "dtype"),
    [
        ("mxfp4", 32, torch.bfloat16),
        ("int4", 128, torch.bfloat16),
        ("int4", 32, torch.float16),
        ("mxfp4", 32, torch.float32),
    ],
    ids=str,
)
def test_every_tile_on_the_device(kind: Kind, group: int, dtype: torch.dtype) -> None:
    gate = LIMITED if kind == "mxfp4" else SILU
    gate_up, down = (moved(one, "cuda") for one in layer(kind, group, dtype, bias=True))
    for tokens in OF_EACH_TILE if dtype != torch.float32 else (10,):
        x, chosen = inputs(tokens, gate_up.columns, dtype)
        x, routed = x.cuda(), Routed(chosen.experts.cuda(), chosen.weights.cuda())
        with poisoned_memory():
            got = whole(mixture.launch(x, routed, gate_up, down, gate), dtype)
        wanted = mixture.reference(x, routed, gate_up, down, gate)
        most = 1e-5 if dtype == torch.float32 else 2e-2
        assert relative_error(got, wanted.double()) < most, tokens


@pytest.mark.gpu
@FORMS
def test_products_that_overlap_have_the_bits_of_others(kind: Kind, group: int) -> None:
    tokens, shape = 900, (NUM_EXPERTS, 640, 384)
    matrix, _ = drawn(kind, shape, group, torch.bfloat16, bias=True)
    matrix = moved(matrix, "cuda")
    if not hopper_four_bit.serves(matrix):
        pytest.skip("not for this device")
    x, chosen = inputs(tokens * TOP_K, matrix.columns, torch.bfloat16)
    chosen = Routed(chosen.experts[:tokens].cuda(), chosen.weights[:tokens].cuda())
    tiles = order.launch(chosen.experts, NUM_EXPERTS, FOUR_BIT_MANY.rows)

    def both(of: MixtureTiles) -> tuple[Tensor, Tensor]:
        rows, dtype = x.cuda(), torch.bfloat16
        gated = products.gated_launch(
            rows[:tokens], chosen, tiles, of.gated, matrix, LIMITED, dtype
        )
        return gated, products.down_launch(rows, chosen, tiles, of.down, matrix, dtype)

    with poisoned_memory():
        one_by_one, overlapped = both(FOUR_BIT_MANY), both(FOUR_BIT_OVERLAPPED)
    assert all(map(torch.equal, one_by_one, overlapped))


@pytest.mark.gpu
def test_a_row_does_not_depend_on_its_neighbours() -> None:
    tokens = 16
    gate_up, down = (moved(one, "cuda") for one in layer("mxfp4", 32, torch.bfloat16))
    x, logits = torch.randn(tokens, HIDDEN).cuda().bfloat16(), torch.randn(tokens, NUM_EXPERTS)

    def first(others: Tensor) -> Tensor:
        mixed = torch.cat((x[:1], x[1:][others]))
        chosen = route.launch(torch.cat((logits[:1], logits[1:][others])).cuda(), TOP_K, True)
        return whole(mixture.launch(mixed, chosen, gate_up, down, SILU), x.dtype)[0]

    usual = first(torch.arange(tokens - 1))
    assert torch.equal(first(torch.arange(tokens - 1).flip(0)), usual)
    assert torch.equal(first(torch.zeros(tokens - 1, dtype=torch.int64)), usual)
