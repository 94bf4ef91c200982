"""What two ranks exchange, on two GPUs: over NCCL alone, and over peer memory.

    python -m benchmarks.distributed.rank_sums

Four tables, in µs, all of replayed graphs:

    sums      a product of each rank, so many rows x 4,096 in bf16 (or in four float32 parts, as a
              few rows have them), to the outputs of the next norm: on one rank alone, over NCCL,
              over peer memory; and whether both ways have the same bits on both ranks
    layers    the products and gates of a layer of an 8B on one of two ranks, without attention,
              with both of its sums
    others    what is exchanged once a step: tokens, and the logits of the whole vocabulary
    products  of one row, on one of two ranks and on one alone

Needs torch and Triton alone. Both ranks are ended if one fails, or after some minutes.
"""

from __future__ import annotations

import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial

import torch
from torch import Tensor

from engine.ranks.collectives import Collectives, Meeting
from engine.ranks.peer_memory import RowShape
from kernels.experts.gate import SILU
from kernels.linear import linear
from kernels.norms import add_rms_norm, gate_mul

RANKS = 2
LIMIT_S = 420.0
PATIENCE = timedelta(seconds=120)
DTYPE = torch.bfloat16
HIDDEN, VOCAB, EPS = 4096, 128_256, 1e-5  # of an 8B
# Its matrices on one of two ranks, rows and columns.
MATRICES = {
    "qkv": (3072, HIDDEN),
    "output": (HIDDEN, 2048),
    "gate_up": (14_336, HIDDEN),
    "down": (HIDDEN, 7168),
}
CUT = {"qkv": 0, "output": 1, "gate_up": 0, "down": 1}  # the dimension that the ranks divide
SUMS = ((4, 1), (4, 8), *((1, rows) for rows in (1, 8, 64, 256, 512, 1024, 2048, 4096, 8192)))
LAYER_ROWS = (1, 8, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
SAMPLED = (1, 8, 64, 256)
NUM_SUMS = 64  # in a graph
NUM_OTHERS = 16
NUM_LAYERS = 4  # with weights of their own: more than the L2 cache holds

Way = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""A rank's product and residual -> (normed, residual)."""
Layer = dict[str, Tensor]


def main() -> int:
    """Run both ranks; the exit status."""
    environment = os.environ | {"NCCL_NVLS_ENABLE": "0", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryDirectory(prefix="ratoon-meeting-") as meeting:
        command = [sys.executable, "-m", "benchmarks.distributed.rank_sums", meeting]
        ranks = [subprocess.Popen([*command, str(rank)], env=environment) for rank in range(RANKS)]
        give_up = time.monotonic() + LIMIT_S
        while any(rank.poll() is None for rank in ranks):
            time.sleep(0.2)
            if time.monotonic() > give_up or any(rank.poll() for rank in ranks):
                print("a rank has failed or hangs", flush=True)
                for rank in ranks:
                    rank.kill()
                return 1
    return 0


class Rank:
    """One of the two: its groups, and what it measures together with the other."""

    def __init__(self, rank: int, directory: str) -> None:
        self._rank = rank
        self._device = torch.device("cuda", rank)
        torch.cuda.set_device(self._device)
        self._library, self._peers = (
            Collectives(Meeting(f"{directory}/{name}", rank, RANKS, PATIENCE), self._device)
            for name in ("library", "peers")
        )
        self._peers.open_peer_memory(RowShape(HIDDEN, DTYPE))
        weight = torch.ones(HIDDEN, dtype=DTYPE, device=self._device)
        self._ways: dict[str, Way] = {
            "alone": partial(added, None, weight),
            "NCCL": partial(added, self._library, weight),
            "peer memory": partial(added, self._peers, weight),
        }

    def measure(self) -> None:
        """All tables."""
        self._say(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
        self._others()
        self._sums()
        self._layers()
        self._products()
        self._library.least(0)
        self._peers.close()
        self._library.close()

    def _sums(self) -> None:
        self._say(heading("rows, parts", self._ways, "same bits", "on both ranks"))
        for num_parts, rows in SUMS:
            product = self._drawn(num_parts, rows, HIDDEN, seed=100 + self._rank)
            product = product if num_parts > 1 else product[0].to(DTYPE)
            residual = self._drawn(rows, HIDDEN, seed=7).to(DTYPE)
            found = {name: repeated(way, product, residual) for name, way in self._ways.items()}
            times = [
                self._seconds(partial(chained, way, product, residual)) / NUM_SUMS
                for way in self._ways.values()
            ]
            same = torch.equal(found["NCCL"], found["peer memory"])
            self._say(line(f"{rows:,}, {num_parts}", times, same, self._alike(found["NCCL"])))

    def _layers(self) -> None:
        self._say(heading("rows, a layer", self._ways, "same bits"))
        layers = [self._layer(index) for index in range(NUM_LAYERS)]
        for rows in LAYER_ROWS:
            start = self._drawn(rows, HIDDEN, seed=9).to(DTYPE)
            found, times = {}, []
            for name, way in self._ways.items():
                found[name] = through(way, layers, start)
                taken = self._seconds(partial(through, way, layers, start))
                times.append(taken / NUM_LAYERS)
            same = torch.equal(found["NCCL"], found["peer memory"])
            self._say(line(f"{rows:,}", times, same))

    def _others(self) -> None:
        groups = {"NCCL": self._library, "peer memory": self._peers}
        self._say(heading("once a step", groups))
        for rows in SAMPLED:
            tokens = torch.arange(rows, device=self._device)
            logits = self._drawn(rows, VOCAB // RANKS, seed=3 + self._rank).to(DTYPE)
            columns = [group.gather_columns(logits) for group in groups.values()]
            assert torch.equal(*columns), "the same bits"
            for name, call in (
                (f"tokens of {rows} rows", lambda group, x=tokens: group.share(x)),
                (f"logits of {rows} rows", lambda group, x=logits: group.gather_columns(x)),
            ):
                times = [
                    self._seconds(partial(again, call, group)) / NUM_OTHERS
                    for group in groups.values()
                ]
                self._say(line(name, times))

    def _products(self) -> None:
        self._say(heading("a product of one row", ("of two ranks", "alone")))
        for name, sizes in MATRICES.items():
            whole = [size * (RANKS if dim == CUT[name] else 1) for dim, size in enumerate(sizes)]
            self._say(line(name, [self._product_seconds(*sizes), self._product_seconds(*whole)]))

    def _product_seconds(self, rows: int, columns: int) -> float:
        weights = [
            self._drawn(rows, columns, seed=number).to(DTYPE) for number in range(NUM_LAYERS)
        ]
        x = self._drawn(1, columns, seed=1).to(DTYPE)

        def multiply() -> None:
            for weight in weights:
                linear.launch_split_k(x, weight, None)

        return self._seconds(multiply) / NUM_LAYERS

    def _layer(self, index: int) -> Layer:
        seeds = range(1000 * self._rank + 10 * index, 10_000)
        return {
            name: self._drawn(*sizes, seed=seed, scale=sizes[1] ** -0.5).to(DTYPE)
            for seed, (name, sizes) in zip(seeds, MATRICES.items(), strict=False)
        }

    def _seconds(self, calls: Callable[[], object], repeats: int = 20) -> float:
        """Median seconds of a replay of what is launched, once both ranks are under way."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            calls()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            calls()
        times = []
        for _ in range(repeats):
            begin, end = (
                torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                for _ in range(2)
            )
            torch.cuda.synchronize()
            self._library.least(0)
            graph.replay()
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(float(begin.elapsed_time(end)) / 1e3)
        graph.reset()
        return statistics.median(times)

    def _alike(self, result: Tensor) -> bool:
        ranks = self._library.gather(result)
        return all(torch.equal(ranks[0], other) for other in ranks[1:])

    def _drawn(self, *shape: int, seed: int, scale: float = 1.0) -> Tensor:
        generator = torch.Generator(self._device).manual_seed(seed)
        return torch.randn(*shape, device=self._device, generator=generator) * scale

    def _say(self, words: str) -> None:
        if self._rank == 0:
            print(words, flush=True)


def added(
    group: Collectives | None, weight: Tensor, product: Tensor, residual: Tensor
) -> tuple[Tensor, Tensor]:
    """The sum of the ranks' products, or this one's, added and normed."""
    read = product if group is None else group.total(product, DTYPE)
    return add_rms_norm.launch(read, residual, weight, EPS)


def repeated(way: Way, product: Tensor, residual: Tensor) -> Tensor:
    """All that comes of ten sums of products that differ."""
    normed = residual
    for number in range(10):
        normed, residual = way(product * (1.0 + number / 8), residual)
    return torch.cat((normed, residual))


def chained(way: Way, product: Tensor, residual: Tensor) -> None:
    """Sums one after the other."""
    for _ in range(NUM_SUMS):
        _, residual = way(product, residual)


def through(way: Way, layers: Sequence[Layer], start: Tensor) -> Tensor:
    """The residual after the layers; the queries stand for what they would have attended to."""
    normed, residual = start, start
    for layer in layers:
        qkv = linear.launch(normed, layer["qkv"], None)
        attended = qkv[:, : layer["output"].shape[1]]
        normed, residual = way(linear.launch_split_k(attended, layer["output"], None), residual)
        inner = gate_mul.launch(linear.launch(normed, layer["gate_up"], None), SILU)
        normed, residual = way(linear.launch_split_k(inner, layer["down"], None), residual)
    return residual


def again(call: Callable[[Collectives], object], group: Collectives) -> None:
    """Exchanges one after the other."""
    for _ in range(NUM_OTHERS):
        call(group)


def heading(first: str, ways: Iterable[str], *more: str) -> str:
    """Of a table."""
    names = [first, *ways, *more]
    return f"\n| {' | '.join(names)} |\n{'|--' * len(names)}|"


def line(name: str, seconds: Sequence[float], *more: object) -> str:
    """Of a table, in µs."""
    cells = [name, *(f"{one * 1e6:.2f}" for one in seconds), *map(str, more)]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(main())
    logging.basicConfig(level=logging.INFO)
    Rank(int(sys.argv[2]), sys.argv[1]).measure()
