"""Sums over ranks have the same bits on all ranks, for any size."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from engine.ranks import collectives
from engine.ranks.collectives import Collectives, RankLeft
from kernels.collectives.peer_rows import PeerProduct
from kernels.linear import split_k as parts
from tests.doubles.ranks.noted_peers import NotedPeers
from tests.engine.rigs.ranks import on_ranks


def product_of(rank: int, rows: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(rows, 64, generator=torch.Generator().manual_seed(rank)).to(dtype)


def total(group: Collectives, product: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sum over the ranks, or a tensor with one part for each rank."""
    found = group.total(product, dtype)
    assert isinstance(found, Tensor), "there is no peer memory"
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_ranks", "rows"), [(2, 5), (2, 9000), (4, 5), (8, 9000)])
def test_totals_have_the_same_bits_on_all_ranks(
    num_ranks: int, rows: int, dtype: torch.dtype
) -> None:
    def compute(group: Collectives) -> Tensor:
        return total(group, product_of(group.rank, rows, dtype), dtype)

    first, *others = on_ranks(num_ranks, compute)
    assert all(torch.equal(other, first) for other in others)
    large = num_ranks > 2 and rows > 5
    assert first.dim() == (2 if large else 3), "the control: large ones are added two-shot"
    expected = torch.zeros(rows, 64)
    for rank in range(num_ranks):
        expected += product_of(rank, rows, dtype)
    assert torch.equal(parts.whole(first, dtype), expected.to(dtype))


def test_what_a_rank_has_in_parts_is_added_first() -> None:
    def compute(group: Collectives) -> Tensor:
        both = torch.stack([product_of(group.rank, 3, torch.float32)] * 2)
        return total(group, both, torch.float32)

    first, second = on_ranks(2, compute)
    assert torch.equal(first, second)
    expected = 2 * (product_of(0, 3, torch.float32) + product_of(1, 3, torch.float32))
    assert torch.equal(first.sum(0), expected)


def test_everybody_gets_the_first_ones_values_and_the_least_number() -> None:
    def compute(group: Collectives) -> tuple[list[int], int, bytes, list[list[int]]]:
        tokens = torch.full((3,), group.rank + 7)
        gathered = group.gather(torch.tensor([group.rank], dtype=torch.int64)).tolist()
        group.share(tokens)
        return (
            tokens.tolist(),
            group.least(5 - group.rank),
            group.of_first(b"%d" % group.rank),
            gathered,
        )

    assert on_ranks(3, compute) == [([7, 7, 7], 3, b"0", [[0], [1], [2]])] * 3


def test_a_rank_that_is_gone_is_an_error_of_few_words_and_nothing_hangs() -> None:
    assert collectives.PATIENCE.total_seconds() > 60, "the control: nobody waited for that"

    def compute(group: Collectives) -> str:
        if group.rank == 1:
            return "gone"
        try:
            group.gather(torch.zeros(1))
        except RankLeft as error:
            return str(error)
        return "no error"

    said, _ = on_ranks(2, compute)
    assert re.fullmatch(r"(Connection closed by peer|Read error) \[127\.0\.0\.1\].*", said)
    assert "typically" not in said  # the error leaves out gloo's advice, which ends with an emoji


def test_few_rows_go_over_peer_memory_and_many_over_the_library() -> None:
    def compute(group: Collectives) -> NotedPeers:
        peers = NotedPeers(most_rows=4)
        group.use_peers(peers)
        for rows in (4, 5):
            product = torch.full((rows, 64), float(group.rank))
            read = group.total(product, torch.float32)
            assert isinstance(read, PeerProduct) == (rows == 4)
            whole = group.total(product, torch.float32, in_parts=False)
            columns = group.gather_columns(product[:, :2])
            tokens = torch.full((rows,), group.rank)
            group.share(tokens)
            assert isinstance(whole, Tensor)
            if rows == 4:
                assert (whole == 2 * group.rank).all()
                assert tokens.tolist() == [7] * 4
            else:
                assert (whole == 1).all()
                assert tokens.tolist() == [0] * 5
            assert columns.shape == (rows, 4)
        return peers

    here = ["product", "gather", "gather", "share"]
    for peers in on_ranks(2, compute):
        assert peers.noted == [*here, "gather", "abandon"], "the last at the end"


def test_columns_are_gathered_side_by_side() -> None:
    def compute(group: Collectives) -> Tensor:
        return group.gather_columns(torch.arange(6).view(2, 3) + 10 * group.rank)

    wanted = torch.tensor([[0, 1, 2, 10, 11, 12], [3, 4, 5, 13, 14, 15]])
    assert all(torch.equal(got, wanted) for got in on_ranks(2, compute))
