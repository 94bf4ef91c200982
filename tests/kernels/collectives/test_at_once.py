"""Ranks that run at the same time, each a process of its own, over memory that all of them share.

What is exchanged is the same bits on all ranks and the sum of what each had, however far one rank
is behind another, and whatever else they exchange in between.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.collectives import peer_gather
from kernels.collectives.peer_rows import TURNS, PeerProduct, PeerRows, ints_of, open_rows
from kernels.norms import add_rms_norm

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels run on CPU tensors only interpreted"
)

ROWS, WIDTH, EPS, ROUNDS = 3, 128, 1e-5, 6
LONGEST_S = 60.0


def drawn(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exchange(rows: PeerRows, dtype: torch.dtype) -> list[Tensor]:
    """What this rank has of each round: a sum, columns of all ranks, tokens of the first."""
    pause = random.Random(rows.rank)
    found: list[Tensor] = []
    for turn in range(ROUNDS):
        time.sleep(pause.choice((0.0, 0.0, 0.002)))
        count, seed = 1 + turn % ROWS, 100 * turn + rows.rank
        product, residual = (drawn(count, WIDTH, dtype=dtype, seed=one) for one in (seed, turn))
        weight = torch.ones(WIDTH, dtype=dtype)
        found.extend(add_rms_norm.launch(PeerProduct(product, rows), residual, weight, EPS))
        found.append(peer_gather.gather(drawn(1, 150, dtype=dtype, seed=seed), rows))
        tokens = torch.arange(2) + seed
        peer_gather.share(tokens, rows)
        found.append(tokens)
    return found


def wanted(num_ranks: int, dtype: torch.dtype) -> list[Tensor]:
    """The same, of what is gathered."""
    found: list[Tensor] = []
    for turn in range(ROUNDS):
        count, seeds = 1 + turn % ROWS, [100 * turn + rank for rank in range(num_ranks)]
        products = torch.stack([drawn(count, WIDTH, dtype=dtype, seed=one) for one in seeds])
        residual, weight = drawn(count, WIDTH, dtype=dtype, seed=turn), torch.ones(WIDTH)
        found.extend(add_rms_norm.launch(products, residual, weight.to(dtype), EPS))
        parts = torch.stack([drawn(1, 150, dtype=dtype, seed=one) for one in seeds])
        found.append(peer_gather.reference(parts))
        found.append(torch.arange(2) + seeds[0])
    return found


def at_once(num_ranks: int, run: Callable[[int], None]) -> list[int | None]:
    """The exit status of each rank; None: it still waits. A rank begins as this process is now."""
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=run, args=(rank,), daemon=True) for rank in range(num_ranks)]
    for one in ranks:
        one.start()
    give_up = time.monotonic() + LONGEST_S
    for one in ranks:
        one.join(max(give_up - time.monotonic(), 0.0))
    found = [one.exitcode for one in ranks]
    for one in ranks:
        one.kill()
    return found


@pytest.mark.parametrize(
    ("num_ranks", "dtype"), [(2, torch.float32), (4, torch.float16), (8, torch.float16)]
)
def test_all_ranks_have_what_each_sent(num_ranks: int, dtype: torch.dtype) -> None:
    ints = ints_of(dtype)
    assert ints is not None
    shape = (TURNS, ROWS, num_ranks, WIDTH)
    buffers = [torch.empty(shape, dtype=ints).share_memory_() for _ in range(num_ranks)]
    peers = [open_rows(rank, buffers) for rank in range(num_ranks)]
    expected = wanted(num_ranks, dtype)

    def run(rank: int) -> None:
        found = exchange(peers[rank], dtype)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert peers[rank].turns.max() < TURNS, "however many there were"

    assert at_once(num_ranks, run) == [0] * num_ranks
