"""Products of ranks that the norm's kernel exchanges equal the sums of gathered products."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.collectives.peer_rows import (
    LEAST_SAVED_BYTES,
    TURNS,
    PeerProduct,
    PeerRows,
    ints_of,
)
from kernels.linear import split_k as parts
from kernels.norms import add_rms_norm
from tests.doubles.ranks.plain_peers import PlainPeers
from tests.doubles.waiting import wait_for

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels run on CPU tensors only interpreted"
)

ROWS, WIDTH, EPS = 4, 72, 1e-5


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def peers_for(num_ranks: int, dtype: torch.dtype) -> PlainPeers:
    ints = ints_of(dtype)
    assert ints is not None
    return PlainPeers(num_ranks, ROWS, WIDTH, ints)


def in_two(rows: PeerRows) -> PeerRows:
    """Return the rows with two-shot exchange for any number of rows."""
    return replace(rows, least_saved=0)


def exchanged(
    peers: PlainPeers,
    products: list[Tensor],
    residual: Tensor,
    weight: Tensor,
    *,
    two_shot: bool = False,
) -> list[tuple[Tensor, Tensor]]:
    """Return each rank's result; products are (T, H), or have a leading dimension of splits."""
    whole = [parts.whole(one, residual.dtype) for one in products]
    sums = summed(whole).view(peers.ints) if two_shot else None
    peers.arrive([one.view(peers.ints) for one in whole], sums)
    return [
        add_rms_norm.launch(
            PeerProduct(one, in_two(rows) if two_shot else rows), residual, weight, EPS
        )
        for one, rows in zip(products, peers.rows, strict=True)
    ]


def summed(ranks: list[Tensor]) -> Tensor:
    """Sum in rank order, and round once."""
    total = torch.zeros(ranks[0].shape)
    for one in ranks:
        total += one.float()
    return total.to(ranks[0].dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_what_is_exchanged_is_as_what_is_gathered(num_ranks: int, dtype: torch.dtype) -> None:
    """Compare the exchange with gathering, one-shot or two-shot: all ranks get the same bits for
    any number of rows.
    """
    peers, weight = peers_for(num_ranks, dtype), draw(WIDTH, dtype=dtype)
    for turn, rows in enumerate((1, 4, 2, 1, 3, 4, 1, 2)):
        products = [
            draw(rows, WIDTH, dtype=dtype, seed=100 * turn + rank) for rank in range(num_ranks)
        ]
        residual = draw(rows, WIDTH, dtype=dtype, seed=turn)
        wanted = add_rms_norm.launch(torch.stack(products), residual, weight, EPS)
        two_shot = num_ranks > 2 and turn in (1, 3, 4, 7)
        for got in exchanged(peers, products, residual, weight, two_shot=two_shot):
            assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    assert peers.rows[0].turns.tolist() == [8 % TURNS, 5 % TURNS, 3 % TURNS, 2 % TURNS]


def test_more_rows_than_fit_go_one_after_the_other() -> None:
    """Exchange more rows than fit, in two launches.

    Both ranks have equal rows, so the data of both launches can be put in beforehand.
    """
    peers, weight = peers_for(2, torch.float32), draw(WIDTH)
    product = draw(1, WIDTH).expand(2 * ROWS - 1, WIDTH)
    residual = draw(2 * ROWS - 1, WIDTH, seed=9)
    wanted = add_rms_norm.launch(torch.stack([product, product]), residual, weight, EPS)
    for rows in peers.rows:
        rows.own.copy_(product[0].view(torch.int32))
        got = add_rms_norm.launch(PeerProduct(product, rows), residual, weight, EPS)
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
        assert rows.turns.tolist() == [2] * (ROWS - 1) + [1]


@pytest.mark.parametrize("two_shot", [False, True])
def test_a_row_goes_to_all_or_to_its_owner_whose_sum_goes_to_all(two_shot: bool) -> None:
    peers, products = peers_for(3, torch.float32), [draw(2, WIDTH, seed=rank) for rank in range(3)]
    exchanged(peers, products, torch.zeros(2, WIDTH), torch.ones(WIDTH), two_shot=two_shot)
    # Before the last rank sends, the others have read; rank 0 owns row 0, and rank 1 owns row 1.
    [first, second] = (peers.rows[to].own[0, :2, 2].view(torch.float32) for to in range(2))
    assert torch.equal(first[0], products[2][0])
    assert torch.equal(second[1], products[2][1])
    assert torch.equal(first[1], products[2][1]) != two_shot
    assert torch.equal(second[0], products[2][0]) != two_shot
    sums = peers.rows[2].own[0].view(torch.float32)
    for owner in range(2):
        assert torch.equal(sums[owner, owner], summed(products)[owner]) == two_shot
        assert sums[owner, 1 - owner].isnan().all() == two_shot, "never written"


@pytest.mark.parametrize(("ranks", "two_shot"), [(2, False), (3, True)])
def test_parts_are_added_and_rounded_before_they_are_sent(ranks: int, two_shot: bool) -> None:
    peers, weight = peers_for(ranks, torch.float16), draw(WIDTH, dtype=torch.float16)
    products = [draw(3, 2, WIDTH, seed=rank) for rank in range(ranks)]
    residual = draw(2, WIDTH, dtype=torch.float16, seed=9)
    whole = torch.stack([parts.whole(one, torch.float16) for one in products])
    wanted = add_rms_norm.launch(whole, residual, weight, EPS)
    for got in exchanged(peers, products, residual, weight, two_shot=two_shot):
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("two_shot", [False, True])
def test_the_sum_of_many_ranks_is_rounded_once(two_shot: bool) -> None:
    """Round the sum of many ranks once, also for many rows, whose sum the library computes."""
    ranks, weight = 8, draw(WIDTH, dtype=torch.float16)
    peers = peers_for(ranks, torch.float16)
    products = [draw(2, WIDTH, dtype=torch.float16, seed=rank) for rank in range(ranks)]
    residual = torch.zeros(2, WIDTH, dtype=torch.float16)
    wanted, rounded_often = summed(products), sum(products)
    assert not torch.equal(wanted, torch.as_tensor(rounded_often)), "the control"
    for _, total in exchanged(peers, products, residual, weight, two_shot=two_shot):
        assert torch.equal(total, wanted)


def test_fp8_is_made_of_what_was_exchanged() -> None:
    peers, weight = peers_for(2, torch.float32), draw(WIDTH)
    products, residual = [draw(2, WIDTH, seed=rank) for rank in range(2)], draw(2, WIDTH, seed=9)
    wanted, total = add_rms_norm.launch_fp8(torch.stack(products), residual, weight, EPS, "token")
    peers.arrive([one.view(torch.int32) for one in products])
    for one, rows in zip(products, peers.rows, strict=True):
        got, summed = add_rms_norm.launch_fp8(
            PeerProduct(one, rows), residual, weight, EPS, "token"
        )
        assert torch.equal(summed, total)
        assert torch.equal(got.values.view(torch.uint8), wanted.values.view(torch.uint8))
        assert torch.equal(got.scales, wanted.scales)


def test_a_number_that_is_the_sentinel_is_a_nan_on_all_ranks() -> None:
    peers, weight = peers_for(2, torch.float32), draw(WIDTH)
    products = [draw(1, WIDTH, seed=rank) for rank in range(2)]
    products[1].view(torch.int32)[0, 7] = -1
    assert products[1][0, 7].isnan()
    residual = draw(1, WIDTH, seed=9)
    peers.arrive([products[0].view(torch.int32), products[1].nan_to_num(1.0).view(torch.int32)])
    # Rank 1 comes first, since it overwrites the data that arrived at rank 0.
    for rank in (1, 0):
        rows = peers.rows[rank]
        _, total = add_rms_norm.launch(PeerProduct(products[rank], rows), residual, weight, EPS)
        assert total.isnan()[0].nonzero().flatten().tolist() == [7]


@pytest.mark.parametrize("marked", range(3))
def test_two_shot_a_number_that_is_the_sentinel_is_a_nan_as_well(marked: int) -> None:
    """Turn a number that equals the sentinel into NaN, whichever rank has it: the owner of row 0,
    of row 1, or of none.
    """
    peers, weight = peers_for(3, torch.float32), draw(WIDTH)
    products = [draw(2, WIDTH, seed=rank) for rank in range(3)]
    sent = [one.clone() for one in products]
    products[marked].view(torch.int32)[:, 7] = -1
    sent[marked][:, 7] = float("nan")
    assert products[marked][:, 7].isnan().all()
    sums, residual = summed(sent).view(torch.int32), draw(2, WIDTH, seed=9)
    peers.arrive([one.view(torch.int32) for one in sent], sums)
    for product, rows in zip(products, peers.rows, strict=True):
        _, total = add_rms_norm.launch(PeerProduct(product, in_two(rows)), residual, weight, EPS)
        assert total.isnan().nonzero().tolist() == [[0, 7], [1, 7]]
        assert torch.equal(total.nan_to_num(), (summed(sent) + residual).nan_to_num())
    for rows, rank in ((rows, rank) for rows in peers.rows for rank in range(3)):
        written = rows.own[0, :2, rank]
        assert (written == -1).all(1).eq((written == -1).any(1)).all(), "all of a row or nothing"


class Launch:
    """A rank's sum of all ranks' products, computed on its own thread."""

    def __init__(self, product: Tensor, rows: PeerRows) -> None:
        self.result: Tensor | None = None
        self._product = PeerProduct(product, rows)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> Tensor:
        """Wait until the launch ends; return the sum."""
        self._thread.join(30)
        assert self.result is not None, "it still waits"
        return self.result

    def _run(self) -> None:
        residual = torch.zeros(1, WIDTH)
        self.result = add_rms_norm.launch(self._product, residual, torch.ones(WIDTH), EPS)[1]


class Waiting(Launch):
    """A launch that waits, since no other rank sends anything in this turn of the buffer."""

    def __init__(self, turn: int = 0, *, two_shot: bool = False) -> None:
        """Wait as rank 0 of two. With `two_shot`, wait as rank 1 of three, which does not own the
        row.
        """
        self.peers = peers_for(3 if two_shot else 2, torch.float32)
        for rows in self.peers.rows:
            rows.turns.fill_(turn)
        self._turn, self._rank = turn, int(two_shot)
        self.products = [draw(1, WIDTH, seed=rank) for rank in range(len(self.peers.rows))]
        rows = self.peers.rows[self._rank]
        self.rows = in_two(rows) if two_shot else rows
        super().__init__(self.products[self._rank], self.rows)
        wait_for(self._has_sent, 30)
        assert self.result is None, "the control: it waits"

    def _has_sent(self) -> bool:
        received = self.peers.rows[1 - self._rank].own[self._turn, 0, self._rank]
        return torch.equal(received, self.products[self._rank][0].view(torch.int32))


def test_a_row_is_waited_for_until_its_last_number() -> None:
    waiting = Waiting()
    numbers = waiting.products[1].view(torch.int32)
    waiting.peers.arrive([numbers, numbers[:, :-1]])
    threading.Event().wait(0.05)
    assert waiting.result is None
    waiting.peers.arrive([numbers, numbers])
    assert torch.equal(waiting.end(), waiting.products[0] + waiting.products[1])


@pytest.mark.parametrize("turn", [0, TURNS - 1])
def test_a_rank_that_does_not_come_is_given_up(turn: int) -> None:
    """Give up on a missing rank.

    The waiting kernel gives up, and so do later kernels, which find the sentinel, a NaN.
    """
    waiting = Waiting(turn)
    rows = waiting.peers.rows[0]
    rows.abandon()
    assert torch.equal(waiting.end(), waiting.products[0]), "nothing of the other's"
    for _ in range(TURNS + 1):  # once for each slot, until all slots are marked again
        assert Launch(waiting.products[0], rows).end().isnan().all()
    assert rows.turns.max() < 0, "no turn is waited for again"


@pytest.mark.parametrize("rank", [0, 1])
def test_two_shot_ranks_that_do_not_come_are_given_up(rank: int) -> None:
    """Give up, two-shot, on missing ranks: a rank that waits for a row's owner, the owner itself,
    and later ranks.
    """
    waiting = Waiting(two_shot=True)
    waiting.rows.abandon()
    assert (waiting.end() == 0).all(), "nothing of the owner's"
    later = in_two(waiting.peers.rows[rank])
    later.abandon()
    for _ in range(TURNS + 1):
        assert Launch(waiting.products[rank], later).end().isnan().all()
    assert later.turns.max() < 0, "no turn is waited for again"


def test_two_shot_sums_are_taken_for_what_they_save() -> None:
    rows = {ranks: peers_for(ranks, torch.float16).rows[0] for ranks in (2, 3, 4, 8)}
    row = 2 * WIDTH  # bytes; with 4 ranks, one-shot sends 3 times as many, and two-shot 3 / 2 times
    bounds = [replace(rows[4], least_saved=3 * row + more) for more in (0, 1)]
    assert [one.is_two_shot(2) for one in bounds] == [True, False]
    assert not in_two(rows[2]).is_two_shot(1 << 20), "between two there is nothing to save"
    most = 2 * LEAST_SAVED_BYTES // row
    assert [rows[ranks].is_two_shot(most) for ranks in (3, 4, 8)] == [True] * 3
    assert [rows[ranks].is_two_shot(1) for ranks in (3, 4, 8)] == [False] * 3


def test_what_fits() -> None:
    rows = peers_for(3, torch.float16).rows[0]
    assert rows.fits(ROWS, WIDTH, torch.float16)
    assert rows.fits(ROWS + 1, WIDTH, torch.float16), "in two launches"
    assert rows.fits(1, WIDTH, torch.bfloat16)
    assert not rows.fits(0, WIDTH, torch.float16)
    assert not rows.fits(1, WIDTH - 8, torch.float16)
    assert not rows.fits(1, WIDTH, torch.float32)
    assert not rows.fits(1, WIDTH, torch.int16)
