"""(token, expert) pairs in tiles: each pair once, in order, and no tile with two experts."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.experts import order
from kernels.experts.order import COUNTED_ALONE, PairTiles
from kernels.experts.tiles import (
    FEW,
    MANY,
    MORE,
    SOME,
    four_bit_tiles_for,
    telling_tokens,
    tile_for,
)

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels run on CPU tensors only interpreted"
)


def drawn(tokens: int, top_k: int, num_experts: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(tokens, num_experts, generator=generator)
    return scores.topk(top_k).indices.int()


def expect_whole(tiles: PairTiles, experts: torch.Tensor) -> None:
    flat, num_pairs = experts.flatten(), experts.numel()
    used = tiles.experts >= 0
    owners = tiles.experts[used].tolist()
    assert owners == sorted(owners)
    assert not used[len(owners) :].any(), "tiles that are left come last"
    found = []
    for expert, pairs in zip(owners, tiles.pairs[used].tolist(), strict=True):
        real = [pair for pair in pairs if pair != num_pairs]
        assert real, "no tile is empty"
        assert real == pairs[: len(real)] == sorted(real)
        assert all(int(flat[pair]) == expert for pair in real)
        found += real
    assert sorted(found) == list(range(num_pairs))


@given(
    tokens=st.integers(1, 60),
    top_k=st.integers(1, 4),
    num_experts=st.integers(4, 12),
    rows=st.sampled_from([16, 32]),
    seed=st.integers(0, 9),
)
def test_every_pair_is_in_a_tile_of_its_expert(
    tokens: int, top_k: int, num_experts: int, rows: int, seed: int
) -> None:
    experts = drawn(tokens, top_k, num_experts, seed)
    expect_whole(order.reference(experts, num_experts, rows), experts)


def test_as_many_tiles_as_there_may_be() -> None:
    """Bound the number of tiles: neither all tokens with one expert nor each with another needs
    more.
    """
    for experts in (torch.zeros(40, 1).int(), torch.arange(40)[:, None].int()):
        tiles = order.reference(experts, 40, 16)
        assert int((tiles.experts >= 0).sum()) <= tiles.experts.shape[0]
    assert order.most_tiles(1, 128, 16) == 1
    assert order.most_tiles(40, 40, 16) == 40


@interpreted
@pytest.mark.parametrize("tokens", [1, 20, COUNTED_ALONE // 2, COUNTED_ALONE // 2 + 1, 4200])
@pytest.mark.parametrize("num_experts", [3, 8])
def test_the_kernel_writes_the_same_tiles(tokens: int, num_experts: int) -> None:
    experts = drawn(tokens, 2, num_experts)
    got, wanted = order.launch(experts, num_experts, 32), order.reference(experts, num_experts, 32)
    used = wanted.experts >= 0
    assert torch.equal(got.experts, wanted.experts)
    assert torch.equal(got.pairs[used], wanted.pairs[used])


@pytest.mark.parametrize("tokens", [0, 1, 20, 300])
@pytest.mark.parametrize("num_experts", [3, 40])
def test_sorting_gives_the_same_tiles(tokens: int, num_experts: int) -> None:
    experts = drawn(tokens, 2, num_experts)
    got, wanted = (one(experts, num_experts, 16) for one in (order.by_sorting, order.reference))
    assert torch.equal(got.experts, wanted.experts)
    assert torch.equal(got.pairs, wanted.pairs)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 7, 128, 129, 3000])
def test_on_the_device(tokens: int) -> None:
    experts = drawn(tokens, 8, 128).cuda()
    got, wanted = order.launch(experts, 128, 16), order.reference(experts, 128, 16)
    used = wanted.experts >= 0
    assert torch.equal(got.experts, wanted.experts)
    assert torch.equal(got.pairs[used], wanted.pairs[used])


def test_tiles_grow_with_the_pairs_of_an_expert() -> None:
    assert [tile_for(n * 8, 128) for n in (1, 128, 129, 384, 385, 1536, 1537)] == [
        FEW, FEW, SOME, SOME, MORE, MORE, MANY,
    ]  # fmt: skip


@pytest.mark.parametrize(("num_experts", "top_k"), [(128, 8), (8, 2), (4, 4)])
def test_the_telling_numbers_of_tokens_meet_every_kernel(num_experts: int, top_k: int) -> None:
    def kernels(tokens: int) -> tuple[object, bool, int]:
        pairs = tokens * top_k
        tiles = tile_for(pairs, num_experts), four_bit_tiles_for(pairs, num_experts)
        return tiles, pairs <= COUNTED_ALONE, order.chunk_for(pairs)

    met = {kernels(tokens) for tokens in telling_tokens(num_experts, top_k, 8192)}
    assert met == {kernels(tokens) for tokens in range(1, 8193)}
    assert list(telling_tokens(num_experts, top_k, 1)) == [1]
