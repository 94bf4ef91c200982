"""How much longer the engine's start takes with a full disk tier.

    python -m benchmarks.restart --gib 10 [--block-kib 2048] [--device-gib 2] [--directory D]

A disk tier is filled with --gib of conversations' prefixes and closed. Then the engine's lower
tiers are opened, the tree is rebuilt and the hottest blocks are loaded, as the engine does before
it is ready: with an empty directory (a cold start), with the full one and its file in the page
cache, and with the file's pages dropped from it. There is no model, because loading one takes the
same time in all three cases.

Knows: the engine's parts that start with a disk. Does not know: models, HTTP.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import torch
import typer

from benchmarks.disk_chains import BLOCK_SIZE, fill
from benchmarks.local_link import LocalLink
from benchmarks.record import progress
from engine.assembly import Computer, Keeping, Limits, ModelFacts, assemble
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.draft import StepLimits
from engine.lower_tiers import GIB, LowerTiers, open_tiers
from engine.queue import QueueLimits
from engine.step import Launched, Step
from engine.warm_up import warm_up
from storage.device_pool import BlockShape, DevicePool
from storage.disk.config import DiskConfig

FINGERPRINT = bytes(32)


@dataclass(frozen=True, slots=True)
class Started:
    """One start. Seconds but for the counts; `cached_gib` is what of the file was in memory."""

    name: str
    cached_gib: float
    open_s: float  # shared memory, the disk's process, its file
    restore_s: float  # all headers read and checked, the tree made
    load_s: float  # the hottest blocks, read, checked and copied; cut off after a while
    ready_s: float
    blocks: int
    loaded: int  # when it was ready
    under_way: int  # then
    failed: int


class NoModel:
    """A runner that is never asked for anything."""

    def launch(self, step: Step) -> Launched:
        """Refuse."""
        raise NotImplementedError(step)


class NotedClock:
    """The usual clock, which keeps what it said."""

    def __init__(self) -> None:
        self.said: list[float] = []

    def __call__(self) -> float:
        """Seconds, monotonic."""
        self.said.append(time.monotonic())
        return self.said[-1]


def start(name: str, config: EngineConfig, pool: DevicePool) -> Started:
    """Start as `engine.main` does, and end without writing anything."""
    cached = cached_bytes(data_of(config)) / GIB
    began = time.monotonic()
    tiers = open_tiers(config, pool, pool.num_blocks, FINGERPRINT)
    opened = time.monotonic()
    clock = NotedClock()
    core = core_over(pool, tiers.lower, clock)
    clock.said = []
    blocks = warm_up(core.parts)
    ready = time.monotonic()
    restored = clock.said[1] if len(clock.said) > 1 else ready  # asked again once loads are begun
    ways = core.parts.copies.ways.values()
    started = Started(
        name=name,
        cached_gib=cached,
        open_s=opened - began,
        restore_s=restored - opened,
        load_s=ready - restored,
        ready_s=ready - began,
        blocks=blocks,
        loaded=sum(way.moves for way in ways),
        under_way=sum(way.under_way for way in ways),
        failed=sum(way.failed for way in ways),
    )
    tiers.close()
    return started


def core_over(pool: DevicePool, lower: LowerTiers, clock: NotedClock) -> EngineCore:
    """An engine that could serve, but for its model."""
    facts = ModelFacts(FINGERPRINT, 128_256, 131_072, (0,), "cpu", "bfloat16")
    return assemble(
        Computer(NoModel(), facts, pool.num_blocks, BLOCK_SIZE, torch.OutOfMemoryError),
        LocalLink(),
        Limits(StepLimits(512, 8), QueueLimits(8), 1.0),
        Keeping(lower=lower),
        clock=clock,
    )


def data_of(config: EngineConfig) -> Path:
    """The file that the blocks lie in."""
    return Path(str(config.disk_cache_dir)) / "blocks" / "data.mdb"


def drop_from_memory(path: Path) -> None:
    """Let nothing of the file be in the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_bytes(path: Path) -> int:
    """How much of the file is in the page cache."""
    if not path.exists() or not path.stat().st_size:
        return 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        present = (ctypes.c_ubyte * pages)()
        first = ctypes.byref(ctypes.c_char.from_buffer(mapped))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mincore(first, ctypes.c_size_t(len(mapped)), present):
            raise OSError(ctypes.get_errno(), "mincore")
        del first  # or the mapping could not be closed
        return sum(page & 1 for page in present) * mmap.PAGESIZE


def measure(directory: Path, gib: float, block_kib: int, device_gib: float) -> list[Started]:
    """A cold start, and starts on a full disk; `gib` is what its blocks come to."""
    per_block = block_kib << 10
    shape = BlockShape(per_block // (2 * BLOCK_SIZE * 2 * 64), 1, BLOCK_SIZE, 64, torch.bfloat16)
    pool = DevicePool(shape, int(device_gib * GIB) // per_block, torch.device("cpu"))
    bound = gib / 0.85 + 0.01  # slots take 85 % of the file
    disk = DiskConfig(
        directory=directory / "full",
        max_bytes=int(bound * GIB),
        block_bytes=per_block,
        fingerprint=FINGERPRINT,
    )
    began = time.monotonic()
    blocks = fill(disk)
    progress(f"{blocks} blocks written in {time.monotonic() - began:.0f} s")
    config = EngineConfig(
        model_dir="", socket="", disk_cache_dir=str(disk.directory), disk_cache_gib=bound
    )
    empty = msgspec.structs.replace(config, disk_cache_dir=str(directory / "empty"))
    found = [start("cold start, nothing on disk", empty, pool)]
    found.append(start("file in the page cache", config, pool))
    drop_from_memory(data_of(config))
    found.append(start("file not in memory", config, pool))
    return found


def main(
    gib: Annotated[float, typer.Option(help="Blocks on disk.")] = 10.0,
    block_kib: Annotated[int, typer.Option(help="A block; 2048 is an 8B's.")] = 2048,
    device_gib: Annotated[float, typer.Option(help="The device's pool.")] = 2.0,
    directory: Annotated[Path, typer.Option(help="Where to write.")] = Path("/tmp"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        found = measure(Path(scratch), gib, block_kib, device_gib)
    if as_json:
        print(json.dumps([asdict(one) for one in found]))
        return
    cold = found[0].ready_s
    print(f"{'':<28}{'GiB cached':>11}{'open':>7}{'tree':>7}{'load':>7}{'ready':>7}{'beyond':>8}")
    for one in found:
        parts = (one.open_s, one.restore_s, one.load_s, one.ready_s)
        numbers = "".join(f"{seconds:>7.2f}" for seconds in parts)
        print(f"{one.name:<28}{one.cached_gib:>11.2f}{numbers}{one.ready_s - cold:>8.2f}", end="")
        print(f"   {one.blocks} blocks: {one.loaded} loaded, {one.under_way} coming", end="")
        print(f", {one.failed} failed")


if __name__ == "__main__":
    typer.run(main)
