"""The time that a full disk tier adds to the start of an engine.

    python -m benchmarks.restart --gib 10 [--block-kib 2048] [--device-gib 2] [--directory D]

A disk tier is filled with --gib GiB of prefixes as conversations would leave them, and closed. The
prefixes are system prompts that many conversations share, and the conversations. Most prefixes are
never hit again. Then the benchmark does what an engine does before it is ready: it opens the lower
tiers, rebuilds the tree and loads the hottest blocks. The three cases are an empty directory, a
full directory with its file in the page cache, and a full directory whose file was dropped from the
page cache. There is no model, because loading a model takes the same time in all three cases.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import iter_unpack
from typing import Annotated

import numpy as np
import torch
import typer

from benchmarks.record import emit, progress
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.link.messages import Welcome
from engine.scheduling.fairness.queue import QueueLimits
from engine.scheduling.step_builder import StepLimits
from engine.startup.assembly import CacheParts, EngineLimits, LoadedRunner, assemble
from engine.startup.memory.lower_tiers import GIB, open_tiers
from engine.startup.warm_up import warm_up
from engine.tier_interfaces import LowerTiers
from prefix_cache.hashing import KEY_BYTES, ROOT_KEY, block_keys
from prefix_cache.namespace import NAMESPACE_BYTES, Namespace, NamespacePath
from storage.disk.config import DiskConfig
from storage.disk.tier import DiskTier
from storage.disk.wire import DiskOutcome, Segment
from storage.move import BlockRecord
from storage.pools.device_pool import DevicePool
from storage.pools.host_pool import HostPool
from tests.doubles.engine.fake_runner import FakeRunner
from tests.doubles.engine.memory_link import MemoryLink
from tests.doubles.layouts import alike_layers

FINGERPRINT = bytes(32)
CPU = torch.device("cpu")
BLOCK_SIZE = 16
TENANTS = 20
TRUNK_BLOCKS = 60
CONVERSATION_BLOCKS = (10, 400)
AT_ONCE = 32
Trunk = tuple[NamespacePath, bytes, int]  # namespaces, the last block's key, number of blocks


def chains(num_blocks: int) -> Iterator[BlockRecord]:
    """Yield `num_blocks` records, parents before children, as a cache would have written them."""
    random, trunks = np.random.default_rng(0), dict[int, Trunk]()
    left = num_blocks
    while left:
        tenant = int(random.integers(TENANTS))
        length, hits = TRUNK_BLOCKS, 1000 - tenant
        if tenant in trunks:
            length, hits = (
                int(random.integers(*CONVERSATION_BLOCKS)),
                int(random.geometric(0.6)) - 1,
            )
        namespace = Namespace(tenant.to_bytes(NAMESPACE_BYTES, "big"))
        trunk = trunks.get(tenant, (NamespacePath.single(namespace), ROOT_KEY, 0))
        run = list(_run(trunk, min(length, left), hits, random))
        trunks.setdefault(tenant, (trunk[0], run[-1].key, len(run)))
        left -= len(run)
        yield from run


def _run(
    trunk: Trunk, length: int, hits: int, random: np.random.Generator
) -> Iterator[BlockRecord]:
    path, parent, first = trunk
    ids = random.integers(0, 128_000, length * BLOCK_SIZE).astype(np.int32)
    keys = block_keys(path, ids, BLOCK_SIZE, parent=parent, first_block=first)
    blocks, namespace = ids.astype("<i4").reshape(length, BLOCK_SIZE), path.at(first)
    for (key,), tokens in zip(iter_unpack(f"{KEY_BYTES}s", keys), blocks, strict=True):
        yield BlockRecord(key, parent, namespace, f"flow {namespace.hex()}", tokens.tobytes(), hits)
        parent = key


def fill(config: DiskConfig) -> int:
    """Write a record with random content into every slot, and return the number of records."""
    host = HostPool(AT_ONCE, config.block_bytes, CPU)
    host.tensor.random_()
    disk = DiskTier(config, host, CPU)
    waiting = 0
    for slot, record in enumerate(chains(disk.num_blocks)):
        disk.write(slot, record, Segment.HOST, slot % AT_ONCE)
        waiting += 1
        while waiting >= AT_ONCE or (waiting and slot + 1 == disk.num_blocks):
            disk.wait(0.05)
            ended = disk.poll()
            if any(end.outcome is not DiskOutcome.DONE for end in ended):
                raise RuntimeError("a block was not written")
            waiting -= len(ended)
    disk.close()
    host.close()
    return disk.num_blocks


def _core(num_blocks: int, lower: LowerTiers, clock: Callable[[], float]) -> EngineCore:
    """Assemble an engine without a model over the opened tiers."""
    welcome = Welcome(
        engine_id="engine",
        fingerprint=FINGERPRINT,
        vocab_size=128_256,
        block_size=BLOCK_SIZE,
        max_model_len=min(131_072, num_blocks * BLOCK_SIZE),
        eos_token_ids=(0,),
        device="cpu",
        dtype="bfloat16",
    )
    return assemble(
        LoadedRunner(FakeRunner(1, 1), welcome, num_blocks, torch.OutOfMemoryError),
        MemoryLink(),
        EngineLimits(StepLimits(512, 8), QueueLimits(8), 1.0),
        CacheParts(lower=lower),
        clock=clock,
    )


def start(name: str, config: EngineConfig, pool: DevicePool) -> float:
    """Start as `engine.main` does, print, and stop without saving.

    Returns the seconds until ready.
    """
    said: list[float] = []

    def clock() -> float:
        said.append(time.monotonic())
        return said[-1]

    cached = cached_bytes(data_of(config)) / GIB
    began = clock()
    tiers = open_tiers(config, pool, pool.num_blocks, FINGERPRINT)
    opened = clock()
    core = _core(pool.num_blocks, tiers.lower, clock)
    said.clear()
    blocks = warm_up(core.components)
    ready = time.monotonic()
    restored = said[1] if len(said) > 1 else ready
    ways = core.components.copies.ways.values()
    emit(
        name,
        cached_gib=cached,
        open_s=opened - began,  # time to open shared memory, the disk's process, and its file
        restore_s=restored - opened,  # time to read and check all headers, and to build the tree
        load_s=ready - restored,  # time to read, check and copy the hottest blocks
        ready_s=ready - began,
        blocks=blocks,
        loaded=sum(way.moves for way in ways),
        under_way=sum(way.under_way for way in ways),
        failed=sum(way.failed for way in ways),
    )
    tiers.close()
    return ready - began


def data_of(config: EngineConfig) -> Path:
    """Return the path of the file of blocks."""
    return Path(str(config.cache.disk_cache_dir)) / "blocks" / "data.mdb"


def drop_from_memory(path: Path) -> None:
    """Drop the file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_bytes(path: Path) -> int:
    """Count the file's bytes in the page cache."""
    if not path.exists() or not path.stat().st_size:
        return 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        present = (ctypes.c_ubyte * pages)()
        first = ctypes.byref(ctypes.c_char.from_buffer(mapped))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mincore(first, ctypes.c_size_t(len(mapped)), present):
            raise OSError(ctypes.get_errno(), "mincore")
        del first  # an open view would prevent the mapping from being closed
        return sum(page & 1 for page in present) * mmap.PAGESIZE


def measure(directory: Path, gib: float, block_kib: int, device_gib: float) -> None:
    """Measure a cold start, and starts on a full disk tier with `gib` GiB of blocks."""
    per_block = block_kib << 10
    layer = alike_layers(1, 1, 64, "bfloat16", BLOCK_SIZE)
    layout = alike_layers(per_block // layer.block_bytes, 1, 64, "bfloat16", BLOCK_SIZE)
    pool = DevicePool(layout, int(device_gib * GIB) // per_block, CPU)
    bound = gib / 0.85 + 0.01  # slots take 85 % of the file
    began = time.monotonic()
    full = DiskConfig(
        directory=directory / "full",
        max_bytes=int(bound * GIB),
        block_bytes=per_block,
        fingerprint=FINGERPRINT,
    )
    progress(f"{fill(full)} blocks written in {time.monotonic() - began:.0f} s")
    config = EngineConfig.of(
        model_dir="", socket="", disk_cache_dir=str(full.directory), disk_cache_gib=bound
    )
    empty = config.changed(disk_cache_dir=str(directory / "empty"))
    cold = start("cold start, nothing on disk", empty, pool)
    cached = start("file in the page cache", config, pool)
    drop_from_memory(data_of(config))
    dropped = start("file not in memory", config, pool)
    emit("beyond a cold start", cached_s=cached - cold, not_in_memory_s=dropped - cold)


def main(
    gib: Annotated[float, typer.Option(help="Blocks on disk.")] = 10.0,
    block_kib: Annotated[int, typer.Option(help="A block; 2048 is an 8B's.")] = 2048,
    device_gib: Annotated[float, typer.Option(help="The device's pool.")] = 2.0,
    directory: Annotated[Path, typer.Option(help="Where to write.")] = Path("/tmp"),
) -> None:
    """Print a JSON line for each start."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        measure(Path(scratch), gib, block_kib, device_gib)


if __name__ == "__main__":
    typer.run(main)
