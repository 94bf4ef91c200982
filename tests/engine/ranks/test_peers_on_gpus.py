"""Exchanges over peer memory give the same bits as over NCCL, also in graphs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from engine.ranks.collectives import Collectives, Rendezvous
from engine.ranks.peer_memory import RowShape
from kernels.collectives.peer_rows import LEAST_SAVED_BYTES, PeerProduct
from kernels.norms import add_rms_norm

GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(GPUS < 2, reason="needs two GPUs"),
]

H, EPS = 1024, 1e-5
ROUNDS = 50
STEPS = 10_000  # steps of 64 exchanges, as in a model of 32 layers
ROWS = (1, 8, 3, 300, 1, 9000)  # the last size needs several launches
# A two-shot sum of more than two ranks is used if it saves this many bytes: always, or never.
IN_TWO, IN_ONE = 0, 1 << 40
PATIENCE = timedelta(seconds=60)


@dataclass(frozen=True)
class Shape:
    """A group's number of ranks and dtype."""

    num_ranks: int
    dtype: torch.dtype = torch.bfloat16


Compute = Callable[[int, str, Shape], None]


class Pair:
    """Two groups of one rank: one with peer memory, one without."""

    def __init__(self, rank: int, directory: str, shape: Shape) -> None:
        self.rank = rank
        self.shape = shape
        self.dtype = shape.dtype
        self.device = torch.device("cuda", rank)
        torch.cuda.set_device(self.device)
        self.plain, self.peers = (
            Collectives(
                Rendezvous(f"{directory}/{name}", rank, shape.num_ranks, PATIENCE), self.device
            )
            for name in ("plain", "peers")
        )
        self.peers.open_peer_memory(RowShape(H, self.dtype))
        self._weight = torch.ones(H, dtype=self.dtype, device=self.device)

    def drawn(self, *shape: int, seed: int) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(*shape, device=self.device, generator=generator)

    def added(self, product: Tensor, residual: Tensor) -> Tensor:
        """Sum over NCCL, and add the residual."""
        gathered = self.plain.total(product, self.dtype)
        return torch.cat(add_rms_norm.launch(gathered, residual, self._weight, EPS))

    def exchanged(
        self, product: Tensor, residual: Tensor, least_saved: int = LEAST_SAVED_BYTES
    ) -> Tensor:
        """Sum over peer memory, and add the residual."""
        read = self.peers.total(product, self.dtype)
        assert isinstance(read, PeerProduct)
        read = replace(read, peers=replace(read.peers, least_saved=least_saved))
        return torch.cat(add_rms_norm.launch(read, residual, self._weight, EPS))


def on_gpus(compute: Compute, directory: Path, shape: Shape) -> None:
    """Run all ranks on GPUs; if one fails, kill the others."""
    spawn(compute, (str(directory), shape), shape.num_ranks)  # type: ignore[no-untyped-call]


def compare(rank: int, directory: str, shape: Shape) -> None:
    pair, order = Pair(rank, directory, shape), random.Random(7)
    for round_ in range(ROUNDS):
        for rows in ROWS:
            residual = pair.drawn(rows, H, seed=round_).to(pair.dtype)
            product = pair.drawn(4, rows, H, seed=1000 * rank + round_)
            for one in (product, product[0].to(pair.dtype)):
                wanted = pair.added(one, residual)
                for way in order.sample((IN_ONE, IN_TWO, LEAST_SAVED_BYTES), 3):
                    assert torch.equal(pair.exchanged(one, residual, way), wanted)
            logits = pair.drawn(min(rows, 300), 5000, seed=1000 * rank + round_).to(pair.dtype)
            wanted = pair.plain.gather_columns(logits)
            assert torch.equal(pair.peers.gather_columns(logits), wanted)
            tokens = torch.arange(rows, device=pair.device) + 60_000 * (rank + round_)
            pair.peers.share(tokens)
            assert torch.equal(tokens, torch.arange(rows, device=pair.device) + 60_000 * round_)


def replay(rank: int, directory: str, shape: Shape) -> None:
    pair, order = Pair(rank, directory, shape), random.Random(7)
    product, residual = (pair.drawn(5, H, seed=seed).to(pair.dtype) for seed in (rank, 99))
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for way in (IN_ONE, IN_TWO):
            pair.exchanged(product, residual, way)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(64):
            out = pair.exchanged(product, residual, order.choice((IN_ONE, IN_TWO)))
            residual = out[5:]
    for number in range(STEPS):
        product.copy_(pair.drawn(5, H, seed=8 * number + rank))
        graph.replay()
        ranks = pair.plain.gather(out)
        assert all(torch.equal(ranks[0], other) for other in ranks[1:])
        assert out.isfinite().all()


def leave(rank: int, directory: str, shape: Shape) -> None:
    """Exchange a few times on all ranks, then only on rank 0 until it gives up on the others."""
    pair = Pair(rank, directory, shape)
    if rank == 0:
        product = pair.drawn(5, H, seed=0).to(pair.dtype)
        # Load the kernel of `cat` now: CUDA may not load it while another kernel polls.
        torch.cat((product, product))
        # Always exchange in the same direction, since the other direction loads another kernel.
        for _ in range(5):
            pair.exchanged(product, product, IN_TWO)
        waiting = torch.cuda.Event()  # type: ignore[no-untyped-call]
        waiting.record()
        assert not bool(waiting.query()), "the control: it waits"  # type: ignore[no-untyped-call]
        pair.peers.close()
        torch.cuda.synchronize()
    pair.plain.least(0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "float32"])
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_all_that_is_exchanged(num_ranks: int, dtype: torch.dtype, tmp_path: Path) -> None:
    expect_gpus(num_ranks)
    on_gpus(compare, tmp_path, Shape(num_ranks, dtype))


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize("compute", [replay, leave])
def test_in_graphs_and_without_the_others(compute: Compute, num_ranks: int, tmp_path: Path) -> None:
    expect_gpus(num_ranks)
    on_gpus(compute, tmp_path, Shape(num_ranks))


def expect_gpus(count: int) -> None:
    if count > GPUS:
        pytest.skip(f"needs {count} GPUs")
