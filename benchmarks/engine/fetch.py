"""The time to fetch a prompt's blocks from another engine: the exchange alone, without a model.

    python -m benchmarks.engine.fetch [--tokens 16384] [--block-kib 2048] [--way socket]

There are two processes, each with a pool and a cache. The first has cached the prompt. The second
fetches the prompt `--repeats` times and compares the bytes. The ways to fetch are:

    socket    a Unix socket
    tcp       TCP, encrypted once more
    device    from GPU to GPU, or within the only GPU; afterwards the copies are timed without an
              exchange, as all blocks in one call, and as one piece of the same bytes
    host      as `device`, but without copies: both hosts' work for each block, on any machine;
              no bytes arrive or are compared

Without `--way`, all ways that the machine has are measured. Prints a JSON line for each. Without a
GPU the pools lie in memory. The default block size is that of an 8B model in bf16. Then each of the
two pools takes 128 KiB for a token.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from select import select
from typing import Annotated

import numpy as np
import torch
import typer
import zmq

from benchmarks.record import emit
from engine.exchange.block_memory import memory_of
from engine.exchange.exchange import Exchange, ExchangeThreads, open_exchange
from engine.exchange.fetching.client import BlockClient
from engine.exchange.peer_pool import HANDLE_BYTES
from engine.exchange.serving.server import BlockServer
from engine.exchange.wire import PoolHandle
from engine.link.engine_end.waker import Waker
from engine.link.messages import FetchSource, SamplingParams
from engine.link.tcp.curve import LinkKey, read_link_key
from engine.sequences.sequence import Sequence
from prefix_cache.cache import PrefixCache
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from storage.batched_copies import CopyPieces, open_batched_copies
from storage.pools.device_pool import DevicePool
from storage.tier_mover import block_bytes_of
from tests.doubles.constant_rate import NOTHING_MEASURED
from tests.doubles.layouts import alike_layers
from tests.doubles.no_copies import NoCopies

SIZE = 16
PATH = NamespacePath.single(Namespace(b"benchmark of it."))
FINGERPRINT = bytes(32)
PATTERN = 251  # each byte of a block is its position modulo this number
WAYS = ("socket", "tcp", "host", "device")
LITTLE_KIB = 1


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the prompt and of a block."""

    tokens: int
    block_kib: int

    @property
    def num_blocks(self) -> int:
        """The number of whole blocks of the prompt."""
        return self.tokens // SIZE

    def token_ids(self) -> np.ndarray:
        """Return the prompt's tokens, followed by a token that is always computed."""
        return np.arange(self.num_blocks * SIZE + 1, dtype=np.int32) % 50_000


class Engine:
    """An engine without a model: a KV pool, a cache, and the exchange of blocks."""

    def __init__(self, sizes: Sizes, device: torch.device, where: str | None, key: LinkKey | None,
                 way: str) -> None:  # fmt: skip
        """Create the engine. It serves blocks to other engines at the address `where`, if given."""
        numbers = (sizes.block_kib << 10) // 2 // 2 // SIZE
        self.pool = DevicePool(
            alike_layers(1, 1, numbers, "bfloat16", SIZE), sizes.num_blocks + 1, device
        )
        self.cache = PrefixCache(num_blocks=sizes.num_blocks + 1, block_size=SIZE)
        if way == "host":
            self.opened = _without_copies(self.pool, where)
        else:
            self.opened = open_exchange(
                self.pool, where, key, FINGERPRINT, between_gpus=way == "device"
            )
        self._arrives = way != "host"
        self.exchange = Exchange(
            self.cache, NOTHING_MEASURED, FINGERPRINT, self.pool.block_bytes, self.opened
        )

    def answer(self, sizes: Sizes) -> None:
        """Cache the prompt and answer fetches for ever."""
        tokens = sizes.token_ids()
        lease = self.cache.acquire(PATH, tokens, owner="flow", now=0.0)
        assert lease is not None
        blocks = block_bytes_of(self.pool)
        for position, block in enumerate(lease.blocks.tolist()):
            blocks[block] = position % PATTERN
        self.cache.commit(lease, tokens, len(tokens) - 1, block_keys(PATH, tokens, SIZE), now=0.0)
        self.cache.release(lease, now=0.0)
        if blocks.is_cuda:
            torch.cuda.synchronize(blocks.device)
        sys.stdout.write(f"{self.opened.address}\n")
        sys.stdout.flush()
        while True:
            select([self.opened.waker.fd], [], [], 0.001 if self.exchange.is_busy else None)
            self.opened.waker.clear()
            self.exchange.turn(lambda _: None, time.monotonic())

    def fetch(self, sizes: Sizes, where: str) -> float:
        """Fetch the prompt, forget it, and return the seconds. Raises RuntimeError on failure."""
        tokens = sizes.token_ids()
        lease = self.cache.acquire(PATH, tokens, owner="flow", now=0.0)
        assert lease is not None
        sequence = _sequence(tokens, FetchSource(where, len(tokens)))
        sequence.hold(lease, 1)
        began = time.perf_counter()
        self.exchange.begin(sequence, time.monotonic(), 0)
        end = 0
        while sequence.is_fetching:
            select([self.opened.waker.fd], [], [], 0.1)
            self.opened.waker.clear()
            for progress in self.exchange.advance(time.monotonic()):
                end = progress.end
        seconds = time.perf_counter() - began
        ids = torch.from_numpy(lease.blocks[: sizes.num_blocks].astype(np.int64))
        found = block_bytes_of(self.pool)[ids.to(self.pool.tensor.device)][:, [0, -1]].cpu()
        wanted = (torch.arange(sizes.num_blocks) % PATTERN).to(torch.uint8)
        is_right = not self._arrives or bool((found == wanted[:, None]).all())
        if end < sizes.num_blocks * SIZE or not is_right:
            raise RuntimeError(f"{end} of {len(tokens)} tokens have come, or are wrong")
        self.cache.release(lease, now=0.0)
        return seconds


def _without_copies(pool: DevicePool, where: str | None) -> ExchangeThreads:
    """Open an exchange that fetches as between GPUs but copies no bytes."""
    memory, waker = memory_of(pool), Waker()
    handle = PoolHandle(bytes(HANDLE_BYTES), 0, pool.num_blocks)
    server = None
    if where is not None:
        server = BlockServer(where, memory, waker.wake, pool=handle)
    client = BlockClient(memory, FINGERPRINT, waker.wake, pools=NoCopies())
    return ExchangeThreads(waker, client, server)


def _sequence(tokens: np.ndarray, source: FetchSource) -> Sequence:
    return Sequence(
        request_id="benchmark",
        client=b"",
        flow="flow",
        weight=1.0,
        path=PATH,
        block_keys=block_keys(PATH, tokens, SIZE),
        sampling=SamplingParams(max_tokens=1),
        prompt_len=len(tokens),
        arrived=0.0,
        tokens=tokens,
        num_tokens=len(tokens),
        loads="always",
        source=source,
    )


def _device(number: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", number % torch.cuda.device_count())


@contextmanager
def _other_engine(sizes: Sizes, way: str, key_file: Path, directory: Path) -> Iterator[str]:
    where = "tcp://127.0.0.1:*" if way == "tcp" else str(directory / f"{way}.x")
    command = [sys.executable, "-m", "benchmarks.engine.fetch", "--answer-at", where]
    command += ["--tokens", f"{sizes.tokens}", "--block-kib", f"{sizes.block_kib}", "--way", way]
    command += ["--key-file", str(key_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def measure(sizes: Sizes, way: str, repeats: int) -> None:
    """Measure a way to fetch, after a warm-up fetch."""
    if way == "host":
        sizes = replace(sizes, block_kib=LITTLE_KIB)
    with tempfile.TemporaryDirectory() as scratch:
        key_file = Path(scratch, "link.key")
        key_file.write_bytes(zmq.curve_keypair()[1])
        key_file.chmod(0o600)
        with _other_engine(sizes, way, key_file, Path(scratch)) as where:
            engine = Engine(sizes, _device(1), None, read_link_key(key_file), way)
            with closing(engine.opened):
                times = sorted(engine.fetch(sizes, where) for _ in range(repeats + 1))[:-1]
                went = list(engine.exchange.stats().fetched)
    num_bytes = sizes.num_blocks * engine.pool.block_bytes
    median = times[len(times) // 2]
    numbers = {"ms": median * 1e3, "least_ms": times[0] * 1e3}
    if way != "host":
        numbers["gb_per_s"] = num_bytes / 1e9 / median
    emit(f"{sizes.tokens} tokens by {way}", **numbers, ways=went)


def measure_copies(sizes: Sizes, repeats: int) -> None:
    """Measure copies between GPUs without an exchange: in one piece, and as blocks in one call."""
    theirs, ours = _device(0), _device(1)
    torch.cuda.set_device(ours)
    block_bytes = sizes.block_kib << 10
    source = torch.ones((sizes.num_blocks, block_bytes), dtype=torch.uint8, device=theirs)
    target = torch.zeros_like(source, device=ours)
    torch.cuda.synchronize(theirs)
    stream = torch.cuda.Stream(ours)  # type: ignore[no-untyped-call]
    # the first such copy also enables peer access between the GPUs
    in_one_piece = partial(target.copy_, source, non_blocking=True)
    _emit_copies("in one piece", in_one_piece, source.numel(), stream, repeats)
    batched = open_batched_copies()
    if batched is not None:
        places = np.arange(sizes.num_blocks, dtype=np.uint64) * np.uint64(block_bytes)
        pieces = CopyPieces(
            places + np.uint64(target.data_ptr()),
            places + np.uint64(source.data_ptr()),
            np.full(sizes.num_blocks, block_bytes, np.uint64),
        )
        at_once = partial(batched.queue, pieces, stream.cuda_stream)
        _emit_copies("blocks in one call", at_once, source.numel(), stream, repeats)


def _emit_copies(
    name: str, copy: Callable[[], object], size: int, stream: torch.cuda.Stream, repeats: int
) -> None:
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        with torch.cuda.stream(stream):
            copy()
        stream.synchronize()
        times.append(time.perf_counter() - began)
    median = sorted(times[1:])[repeats // 2]
    emit(f"copies alone, {name}", ms=median * 1e3, gb_per_s=size / 1e9 / median)


def main(
    tokens: Annotated[int, typer.Option(help="Of the prompt.")] = 16_384,
    block_kib: Annotated[int, typer.Option(help="A block; 2048 is an 8B's.")] = 2048,
    way: Annotated[str | None, typer.Option(help="One of them.")] = None,
    repeats: Annotated[int, typer.Option(help="Fetches that count.")] = 5,
    answer_at: Annotated[str | None, typer.Option(hidden=True)] = None,
    key_file: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure the ways to fetch that this machine supports."""
    sizes = Sizes(tokens, block_kib)
    if answer_at is not None:
        key = None if key_file is None else read_link_key(key_file)
        Engine(sizes, _device(0), answer_at, key, way or "").answer(sizes)
    ways = WAYS if torch.cuda.is_available() else WAYS[:-1]
    for one in ways if way is None else (way,):
        measure(sizes, one, repeats)
        if one == "device" and torch.cuda.is_available():
            measure_copies(sizes, repeats)


if __name__ == "__main__":
    typer.run(main)
