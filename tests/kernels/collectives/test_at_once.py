"""Ranks that run concurrently, each in a separate process, over shared memory.

Exchanged sums have the same bits on all ranks and equal the sum of the ranks' products, however far
one rank is behind another, in either mode, and whatever else is exchanged in between.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from multiprocessing.process import BaseProcess

import pytest
import torch
from torch import Tensor

from kernels.collectives import peer_gather
from kernels.collectives.peer_rows import TURNS, PeerProduct, PeerRows, ints_of, open_rows
from kernels.norms import add_rms_norm
from tests.examples import in_the_zoo

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels run on CPU tensors only interpreted"
)

ROWS, WIDTH, EPS = 5, 128, 1e-5
# In the interpreter, a reader may see only one byte of a 16-bit number that another rank writes,
# since glibc's memcpy copies two bytes separately. A GPU reads both bytes at once.
DTYPE = torch.float32
EXCHANGES = 24
WAYS = ("one-shot", "two-shot", "columns", "tokens")
LONGEST_S, STILL_S = 60.0, 0.05


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, dtype=DTYPE, generator=torch.Generator().manual_seed(seed))


def exchanges(number: int) -> Iterator[tuple[int, str, int]]:
    """Yield the seed, mode and number of rows of each exchange, in the same order on all ranks."""
    order = random.Random(181)
    for each in range(number):
        yield 100 * each, order.choice(WAYS), order.randint(1, ROWS + 1)


def exchange(rows: PeerRows, number: int) -> list[Tensor]:
    """Return the result of each exchange on one rank: sums, all ranks' columns, or rank 0's
    tokens.
    """
    pause, weight = random.Random(rows.rank), torch.ones(WIDTH, dtype=DTYPE)
    in_two = replace(rows, least_saved=0)
    found: list[Tensor] = []
    for seed, way, count in exchanges(number):
        time.sleep(pause.choice((0.0, 0.0, 0.002)))
        if way == "columns":
            mine = drawn(1, 20 + 80 * count, seed=seed + rows.rank)
            found.append(peer_gather.gather(mine, rows))
        elif way == "tokens":
            found.append(torch.arange(20 * count) + seed + rows.rank)
            peer_gather.share(found[-1], rows)
        else:
            product = drawn(count, WIDTH, seed=seed + rows.rank)
            residual = drawn(count, WIDTH, seed=seed + 99)
            unread = PeerProduct(product, in_two if way == "two-shot" else rows)
            found.append(torch.cat(add_rms_norm.launch(unread, residual, weight, EPS)))
    return found


def wanted(num_ranks: int, number: int) -> list[Tensor]:
    """Return the expected results, computed from all ranks' inputs."""
    weight = torch.ones(WIDTH, dtype=DTYPE)
    found: list[Tensor] = []
    for first, way, count in exchanges(number):
        seeds = range(first, first + num_ranks)
        if way == "columns":
            parts = [drawn(1, 20 + 80 * count, seed=seed) for seed in seeds]
            found.append(peer_gather.reference(torch.stack(parts)))
        elif way == "tokens":
            found.append(torch.arange(20 * count) + first)
        else:
            products = [drawn(count, WIDTH, seed=seed) for seed in seeds]
            residual = drawn(count, WIDTH, seed=first + 99)
            summed = add_rms_norm.launch(torch.stack(products), residual, weight, EPS)
            found.append(torch.cat(summed))
    return found


def test_the_control_two_shot_sums_follow_and_precede_every_way_and_take_two_launches() -> None:
    ways = [way for _, way, _ in exchanges(EXCHANGES)]
    of_interest = {(a, b) for a in WAYS for b in WAYS if "two-shot" in (a, b)}
    assert of_interest <= set(pairwise(ways))
    assert {way for _, way, count in exchanges(EXCHANGES) if count > ROWS} >= {*WAYS[:2]}


def at_once(num_ranks: int, run: Callable[[int], None]) -> list[int | None]:
    """Run all ranks; return each rank's exit status, or None if it still waits.

    Ranks are forked from this process.
    """
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=run, args=(rank,), daemon=True) for rank in range(num_ranks)]
    for one in ranks:
        one.start()
    give_up, order = time.monotonic() + LONGEST_S, random.Random(7)
    while (alive := [one for one in ranks if one.is_alive()]) and time.monotonic() < give_up:
        stand_still(order.choice(alive))
    found = [one.exitcode for one in ranks]
    for one in ranks:
        one.kill()
    return found


def stand_still(rank: BaseProcess) -> None:
    """Stop the rank for a while, wherever it is, while the other ranks continue."""
    assert rank.pid is not None
    os.kill(rank.pid, signal.SIGSTOP)
    time.sleep(STILL_S)
    os.kill(rank.pid, signal.SIGCONT)
    time.sleep(STILL_S / 4)


@pytest.mark.parametrize(
    ("num_ranks", "number"),
    [(3, EXCHANGES // 2), (8, EXCHANGES // 4), *in_the_zoo((2, EXCHANGES), (4, EXCHANGES // 2))],
)
def test_all_ranks_have_what_each_sent(num_ranks: int, number: int) -> None:
    ints = ints_of(DTYPE)
    assert ints is not None
    shape = (TURNS, ROWS, num_ranks, WIDTH)
    buffers = [torch.empty(shape, dtype=ints).share_memory_() for _ in range(num_ranks)]
    peers = [open_rows(rank, buffers) for rank in range(num_ranks)]
    expected = wanted(num_ranks, number)

    def run(rank: int) -> None:
        found = exchange(peers[rank], number)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert peers[rank].turns.max() < TURNS, "however many there were"

    assert at_once(num_ranks, run) == [0] * num_ranks
