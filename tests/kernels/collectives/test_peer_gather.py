"""Gathering over peer memory: it gives all ranks' data, and sharing gives rank 0's data."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from kernels.collectives import peer_gather
from tests.doubles.ranks.plain_peers import PlainPeers

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels run on CPU tensors only interpreted"
)

ROWS, WIDTH = 6, 72


def pieces(x: Tensor, width: int) -> Tensor:
    """Split (R, C) into rows of `width`; the padding at the ends of x's rows is never read."""
    cut = [piece for row in x for piece in row.split(width)]
    return torch.stack([torch.nn.functional.pad(one, (0, width - len(one))) for one in cut])


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_columns_come_side_by_side(num_ranks: int) -> None:
    peers = PlainPeers(num_ranks, ROWS, WIDTH, torch.int16)
    for turn, (rows, columns) in enumerate(((1, 300), (6, 72), (3, 100), (2, 5), (1, 1))):
        generator = torch.Generator().manual_seed(turn)
        ranks = torch.randn(num_ranks, rows, columns, generator=generator).half()
        peers.arrive([pieces(one.view(torch.int16), WIDTH) for one in ranks])
        for mine, own in zip(ranks, peers.rows, strict=True):
            assert peer_gather.can_gather(mine, own)
            assert torch.equal(peer_gather.gather(mine, own), peer_gather.reference(ranks))


def test_more_rows_than_fit_go_one_after_the_other() -> None:
    peers = PlainPeers(2, ROWS, WIDTH, torch.int16)
    x = torch.arange(100).half().expand(5, 100)  # each row takes two rows of the buffer
    for own in peers.rows:
        halves = pieces(x[:1].view(torch.int16), WIDTH)
        own.own[:, 0::2], own.own[:, 1::2] = halves[0], halves[1]
        assert torch.equal(peer_gather.gather(x, own), torch.cat((x, x), 1))
        assert own.turns.tolist() == [2, 2, 2, 2, 1, 1]


def test_tokens_of_the_first_rank() -> None:
    """Share rank 0's tokens, including tokens whose lower half has all bits set."""
    peers = PlainPeers(2, ROWS, WIDTH, torch.int16)
    for turn, count in enumerate((1, 40, 7)):
        generator = torch.Generator().manual_seed(turn)
        first, second = torch.randint(1 << 18, (2, count), generator=generator)
        first[0], wanted = 0xFFFF, first.clone()
        wanted[0] = 0xFFFF
        halves = [one.view(1, -1).view(torch.int32) for one in (first, second)]
        peers.arrive([pieces(one, WIDTH // 2) for one in halves])
        for tokens, own in zip((first, second), peers.rows, strict=True):
            assert peer_gather.can_share(tokens, own)
            peer_gather.share(tokens, own)
            assert torch.equal(tokens, wanted)


def test_what_fits() -> None:
    [own, _] = PlainPeers(2, ROWS, WIDTH, torch.int16).rows
    half = torch.zeros(2, ROWS * WIDTH).half()
    assert peer_gather.can_gather(half, own)
    assert not peer_gather.can_gather(torch.zeros(2, ROWS * WIDTH + 1).half(), own)
    assert not peer_gather.can_gather(half.float(), own)
    assert not peer_gather.can_gather(half[:0], own)
    tokens = torch.zeros(ROWS * WIDTH // 4, dtype=torch.int64)
    assert peer_gather.can_share(tokens, own)
    assert not peer_gather.can_share(torch.zeros(len(tokens) + 1, dtype=torch.int64), own)
    assert not peer_gather.can_share(tokens.int(), own)
    assert not peer_gather.can_share(tokens[:0], own)
