"""What two ranks' exchanges cost, on two GPUs: NCCL's, and those over peer memory.

    python -m benchmarks.engine.exchanges

Three tables, in µs, each of replayed graphs. Exchanges: a product of so many rows x 4,096 in bf16
(or in four float32 parts, as few rows have them) of each rank, to the next norm's outputs: the norm
alone on one rank; NCCL's all-gather and the norm; the kernel of both over peer memory; and whether
both gave the same bits on both ranks. Layers: the products of a layer of an 8B on one of two ranks
(no attention) with both of its sums. Others: what a step exchanges once.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

import torch
from torch import Tensor

from engine.ranks.collectives import Collectives, Meeting, c10d
from engine.ranks.peer_memory import mapped_buffers
from kernels.exchange import peer_add_rms_norm
from kernels.exchange.peer_rows import PeerRows, begun
from kernels.experts.gate import SILU
from kernels.linear import linear
from kernels.norms import add_rms_norm, gate_mul

RANKS = 2
HIDDEN, QKV, ATTENDED, INNER = 4096, 3072, 2048, 7168  # of an 8B, on one of two ranks
VOCAB = 128_256
ROWS = (1, 8, 64, 256, 512)
MANY_ROWS = (1024, 2048)
PARTED = (1, 8)  # rows whose products come in parts
CHAIN = 64  # exchanges in a graph
LAYERS = 4  # with weights of their own: more than the L2 cache holds
EPS = 1e-5
LIMIT_S = 420.0
DTYPE = torch.bfloat16

Exchange = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""A rank's product and residual -> (normed, residual)."""


def main() -> int:
    """Start both ranks, and end them if they take too long."""
    with tempfile.TemporaryDirectory(prefix="ratoon-meeting-") as meeting:
        environment = {
            **os.environ,
            "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
            "NCCL_NVLS_ENABLE": "0",
            "PYTHONUNBUFFERED": "1",
        }
        command = [sys.executable, "-m", "benchmarks.engine.exchanges"]
        ranks = [
            subprocess.Popen([*command, str(rank), meeting], env=environment)
            for rank in range(RANKS)
        ]
        give_up = time.monotonic() + LIMIT_S
        while any(rank.poll() is None for rank in ranks):
            time.sleep(0.2)
            if time.monotonic() > give_up or any(rank.poll() not in (None, 0) for rank in ranks):
                print("a rank failed or hangs; all are killed", flush=True)
                time.sleep(2)
                for rank in ranks:
                    rank.kill()
                return 1
    return 0


class Bench:
    """One rank's."""

    def __init__(self, rank: int, meeting: str) -> None:
        self.rank = rank
        self.device = torch.device("cuda", rank)
        torch.cuda.set_device(self.device)
        self.group = Collectives(
            Meeting(f"{meeting}/ranks", rank, RANKS, timedelta(seconds=120)), self.device
        )
        self.keep: list[object] = []
        self.peers: PeerRows | None = None
        self.store = c10d.PrefixStore("peers", c10d.FileStore(f"{meeting}/peers", RANKS))

    def say(self, words: str) -> None:
        """Print, on one rank."""
        if self.rank == 0:
            print(words, flush=True)

    def open_peers(self) -> None:
        """Map both ranks' buffers."""
        shape = (3, max(MANY_ROWS), RANKS, HIDDEN)
        held, buffers = mapped_buffers(
            self.store, self.rank, RANKS, "ratoon-peers", shape, torch.int16, self.device
        )
        self.keep.append(held)
        self.peers = begun(self.rank, buffers)
        torch.cuda.synchronize()
        self.group.least(0)

    def drawn(self, *shape: int, seed: int, scale: float = 1.0) -> Tensor:
        """Random numbers, of a normal distribution, in float32."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(*shape, device=self.device, generator=generator) * scale

    def seconds(self, calls: Callable[[], object], repeats: int = 20) -> float:
        """Median seconds of a replay of what `calls` launches."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            calls()
        torch.cuda.synchronize()
        self.group.least(0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            calls()
        times = []
        for _ in range(repeats):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            self.group.least(0)
            graph.replay()  # so that both ranks are in step when the second one is timed
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        graph.reset()
        return statistics.median(times)

    def exchanges(self, weight: Tensor) -> dict[str, Exchange]:
        """By name."""

        def alone(product: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
            return add_rms_norm.launch(product, residual, weight, EPS)

        def over_nccl(product: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
            gathered = self.group.total(product, DTYPE)
            return add_rms_norm.launch(gathered, residual, weight, EPS)

        def over_peers(product: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
            assert self.peers is not None
            return peer_add_rms_norm.launch(product, residual, weight, EPS, self.peers)

        found: dict[str, Exchange] = {"alone": alone, "nccl": over_nccl}
        return found | ({"peers": over_peers} if self.peers is not None else {})

    def exchange_table(self, shapes: Sequence[tuple[int, int]]) -> None:
        """Exchanges of products in so many parts, of so many rows."""
        weight = self.drawn(HIDDEN, seed=5).to(DTYPE)
        ways = self.exchanges(weight)
        self.say(f"\n| rows, parts | {' | '.join(ways)} | same bits as nccl | on all ranks |")
        self.say("|--" * (len(ways) + 3) + "|")
        for parts, rows in shapes:
            product = self.drawn(parts, rows, HIDDEN, seed=100 + self.rank)
            if parts == 1:
                product = product[0].to(DTYPE)
            residual = self.drawn(rows, HIDDEN, seed=7).to(DTYPE)
            results = {name: self.repeated(way, product, residual) for name, way in ways.items()}
            same = "peers" in results and all(
                torch.equal(a, b) for a, b in zip(results["peers"], results["nccl"], strict=True)
            )
            everywhere = self.is_same_everywhere(results.get("peers", results["nccl"]))
            cells = []
            for way in ways.values():
                taken = self.seconds(partial(chained, way, product, residual))
                cells.append(f"{taken / CHAIN * 1e6:.2f}")
            self.say(f"| {rows}, {parts} | {' | '.join(cells)} | {same} | {everywhere} |")

    def repeated(self, way: Exchange, product: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """After ten exchanges whose products differ."""
        normed = residual
        for number in range(10):
            scaled = product * (1.0 + number / 8)
            normed, residual = way(scaled, residual)
        torch.cuda.synchronize()
        return normed, residual

    def is_same_everywhere(self, results: tuple[Tensor, Tensor]) -> bool:
        """Whether all ranks have the same bits."""
        gathered = [self.group.gather(one) for one in results]
        return all(bool(torch.equal(one[0], one[1])) for one in gathered)

    def layer_table(self) -> None:
        """Products of layers, with and without the sums."""
        torch.cuda.empty_cache()
        shapes = {"qkv": (QKV, HIDDEN), "o": (HIDDEN, ATTENDED)}
        shapes |= {"gate_up": (2 * INNER, HIDDEN), "down": (HIDDEN, INNER)}
        layers = [
            {
                name: self.drawn(
                    *shape, seed=1000 * self.rank + 10 * i + j, scale=shape[1] ** -0.5
                ).to(DTYPE)
                for j, (name, shape) in enumerate(shapes.items())
            }
            for i in range(LAYERS)
        ]
        weight = torch.ones(HIDDEN, device=self.device, dtype=DTYPE)
        ways = self.exchanges(weight)
        self.say(f"\n| rows, a layer | {' | '.join(ways)} | same bits |")
        self.say("|--" * (len(ways) + 2) + "|")
        for rows in (*ROWS, 2048, 8192):
            start = self.drawn(rows, HIDDEN, seed=9).to(DTYPE)
            cells, results = [], {}
            for name, way in ways.items():
                if name == "peers" and rows > max(ROWS):
                    continue

                results[name] = through(way, layers, start).clone()
                cells.append(
                    f"{self.seconds(partial(through, way, layers, start)) / LAYERS * 1e6:.1f}"
                )
            same = "peers" in results and bool(torch.equal(results["peers"], results["nccl"]))
            self.say(f"| {rows} | {' | '.join(cells)} | {same} |")

    def other_table(self) -> None:
        """What is exchanged once a step, over NCCL."""
        self.say("\n| once a step, over NCCL | µs |\n|--|--|")
        for rows in (1, 64):
            tokens = torch.zeros(rows, dtype=torch.int64, device=self.device)
            logits = self.drawn(rows, VOCAB // RANKS, seed=3).to(DTYPE)

            def shared(tokens: Tensor = tokens) -> None:
                for _ in range(16):
                    self.group.share(tokens)

            def gathered(logits: Tensor = logits) -> None:
                for _ in range(16):
                    self.group.gather(logits)

            def in_order(logits: Tensor = logits) -> None:
                for _ in range(16):
                    self.group.gather(logits).transpose(0, 1).flatten(1)

            self.say(f"| tokens of {rows} | {self.seconds(shared) / 16 * 1e6:.2f} |")
            self.say(f"| logits of {rows} | {self.seconds(gathered) / 16 * 1e6:.2f} |")
            self.say(f"| the same, in order | {self.seconds(in_order) / 16 * 1e6:.2f} |")


def chained(way: Exchange, product: Tensor, residual: Tensor) -> None:
    """Exchanges one after the other."""
    for _ in range(CHAIN):
        _, residual = way(product, residual)


def through(way: Exchange, layers: list[dict[str, Tensor]], start: Tensor) -> Tensor:
    """The residual after the layers' products and sums, without attention."""
    normed, residual = start, start
    for layer in layers:
        qkv = linear.launch(normed, layer["qkv"], None)
        product = linear.launch_split_k(qkv[:, :ATTENDED], layer["o"], None)
        normed, residual = way(product, residual)
        inner = gate_mul.launch(linear.launch(normed, layer["gate_up"], None), SILU)
        product = linear.launch_split_k(inner, layer["down"], None)
        normed, residual = way(product, residual)
    return residual


def run(rank: int, meeting: str) -> int:
    """Be one rank."""
    bench = Bench(rank, meeting)
    bench.say(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    bench.say(f"peer access: {torch.cuda.can_device_access_peer(rank, 1 - rank)}")
    bench.other_table()
    try:
        bench.open_peers()
    except (RuntimeError, AttributeError, TypeError):
        traceback.print_exc()
        bench.say("no peer memory")
    bench.exchange_table([(4, rows) for rows in PARTED] + [(1, rows) for rows in ROWS])
    bench.layer_table()
    bench.exchange_table([(1, rows) for rows in MANY_ROWS])
    bench.group.least(0)
    bench.group.close()
    bench.say("done")
    return 0


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(run(int(arguments[0]), arguments[1]) if arguments else main())
