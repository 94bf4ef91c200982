"""The speed of moving blocks between tiers: GB/s of copies, MB/s of the disk, time to scan.

Run as `python -m benchmarks.tiers [--blocks N] [--block-kib K] [--records N] [--directory D]
[--json]`. Without a CUDA device, copies between host and device are left out, with a message. The
disk is read from the page cache, right after it was written; a cold disk adds its own time.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer

from storage.device_pool import BlockShape, DevicePool
from storage.disk.config import DiskConfig
from storage.disk.tier import DiskTier
from storage.host_pool import HostPool
from storage.move import Move, Plan, Record, Tier
from storage.tier_mover import TierMover

REPEATS = 5
Pair = tuple[Tier, Tier]
DOWN, UP = (Tier.DEVICE, Tier.HOST), (Tier.HOST, Tier.DEVICE)


@dataclass(frozen=True)
class Number:
    """One measured number."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True)
class Wish:
    """What to measure with."""

    num_blocks: int
    block_bytes: int
    num_records: int
    directory: Path


def record_of(slot: int) -> Record:
    """Some record for a slot."""
    name = slot.to_bytes(16, "little")
    return Record(name, name, name, "flow", name * 4)


def plan_of(ways: list[Pair], num_blocks: int, first: int = 0) -> Plan:
    """Blocks `first` on, `num_blocks` each way; the second way takes the blocks behind."""
    moves: list[Move] = []
    records: dict[Move, Record] = {}
    for turn, (source, target) in enumerate(ways):
        for slot in range(first + turn * num_blocks, first + (turn + 1) * num_blocks):
            moves.append(Move(source, slot, target, slot))
            if Tier.DISK in (source, target):
                records[moves[-1]] = record_of(slot)
    return Plan(tuple(moves), records)


def seconds_of(mover: TierMover, plan: Plan, disk: DiskTier | None = None) -> float:
    """From `start` until all has been settled; raises where anything has failed."""
    started = time.perf_counter()
    mover.start(plan)
    done = 0
    while mover.pending:
        done += len(mover.poll().done)
        if disk is not None and mover.pending:
            disk.wait(0.01)
    if done != len(plan.moves):
        raise RuntimeError(f"{len(plan.moves) - done} moves have failed")
    return time.perf_counter() - started


def best(times: int, run: Callable[[], float]) -> float:
    """The least of several runs, after one that does not count."""
    run()
    return min(run() for _ in range(times))


def pools(wish: Wish, device: torch.device) -> tuple[DevicePool, HostPool]:
    """Twice the blocks on either side, for two ways at once."""
    numbers = wish.block_bytes // 2 // 2 // 16  # of two bytes, keys and values, 16 tokens
    shape = BlockShape(1, 1, 16, numbers, torch.bfloat16)
    host = HostPool(2 * wish.num_blocks, wish.block_bytes, device)
    return DevicePool(shape, 2 * wish.num_blocks, device), host


def copies(wish: Wish, device: torch.device) -> list[Number]:
    """Host to device, device to host, both at once."""
    pool, host = pools(wish, device)
    mover = TierMover(pool, host)
    size = wish.num_blocks * wish.block_bytes / 1e9
    numbers = [Number("pin the host arena", host.nbytes / 1e9 / host.seconds, "GB/s")]
    for name, ways in (
        ("host to device", [UP]),
        ("device to host", [DOWN]),
        ("both at once", [UP, DOWN]),
    ):
        plan = plan_of(ways, wish.num_blocks)
        seconds = best(REPEATS, lambda plan=plan: seconds_of(mover, plan))  # type: ignore[misc]
        numbers.append(Number(name, len(ways) * size / seconds, "GB/s"))
    started = time.perf_counter()
    mover.start(plan_of([UP], wish.num_blocks))
    numbers.append(Number("start of such a plan", (time.perf_counter() - started) * 1e3, "ms"))
    mover.close()
    host.close()
    return numbers


def disk_moves(wish: Wish, directory: Path, *, encrypt: bool) -> list[Number]:
    """Host to disk and disk to host."""
    pool, host = pools(wish, torch.device("cpu"))
    host.tensor.random_()
    disk = DiskTier(_config(wish, directory, encrypt=encrypt), host)
    mover = TierMover(pool, host, disk)
    size = wish.num_blocks * wish.block_bytes / 1e6
    kind = "encrypted" if encrypt else "clear"
    write = seconds_of(mover, plan_of([(Tier.HOST, Tier.DISK)], wish.num_blocks), disk)
    read_plan = plan_of([(Tier.DISK, Tier.HOST)], wish.num_blocks)
    read = best(2, lambda: seconds_of(mover, read_plan, disk))
    disk.close()
    host.close()
    return [
        Number(f"disk write, {kind}", size / write, "MB/s"),
        Number(f"disk read, {kind}", size / read, "MB/s"),
    ]


def scan(wish: Wish, directory: Path) -> list[Number]:
    """Time from a closed file of many small records to all of them told."""
    small = Wish(wish.num_records, 4096, 0, directory)
    host = HostPool(1, small.block_bytes, torch.device("cpu"))
    config = _config(small, directory, encrypt=False)
    disk = DiskTier(config, host)
    pool = DevicePool(BlockShape(1, 1, 16, 64, torch.bfloat16), 1, torch.device("cpu"))
    mover = TierMover(pool, host, disk)
    for first in range(0, small.num_blocks, 2000):
        slots = range(first, min(first + 2000, small.num_blocks))
        moves = {Move(Tier.HOST, 0, Tier.DISK, slot): record_of(slot) for slot in slots}
        seconds_of(mover, Plan(tuple(moves), moves), disk)
    disk.close()
    started = time.perf_counter()
    disk = DiskTier(config, host)
    opened = time.perf_counter()
    found = sum(1 for _ in disk.scan())
    ended = time.perf_counter()
    disk.close()
    host.close()
    if found != small.num_blocks:
        raise RuntimeError(f"{found} of {small.num_blocks} records")
    return [
        Number("open the disk tier", opened - started, "s"),
        Number(f"scan {found:,} records", ended - opened, "s"),
    ]


def _config(wish: Wish, directory: Path, *, encrypt: bool) -> DiskConfig:
    record_bytes = wish.block_bytes + 16_384
    return DiskConfig(
        directory=directory,
        max_bytes=int((wish.num_blocks + 8) * record_bytes / 0.8) + (1 << 20),
        block_bytes=wish.block_bytes,
        fingerprint=bytes(32),
        encrypt=encrypt,
        read_deadline_s=60.0,
        write_deadline_s=600.0,
    )


def measure(wish: Wish) -> list[Number]:
    """All numbers that this machine can give."""
    numbers: list[Number] = []
    if torch.cuda.is_available():
        numbers += copies(wish, torch.device("cuda"))
    else:
        print("no CUDA device: copies between host and device are left out", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=wish.directory) as scratch:
        for encrypt in (False, True):
            numbers += disk_moves(wish, Path(scratch) / f"moves-{encrypt}", encrypt=encrypt)
        numbers += scan(wish, Path(scratch) / "scan")
    return numbers


def main(
    blocks: Annotated[int, typer.Option(help="To be moved at once.")] = 512,
    block_kib: Annotated[int, typer.Option(help="A block; 2048 is an 8B's.")] = 2048,
    records: Annotated[int, typer.Option(help="To be scanned.")] = 100_000,
    directory: Annotated[Path, typer.Option(help="Where to write.")] = Path("/tmp"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Measure and print."""
    numbers = measure(Wish(blocks, block_kib << 10, records, directory))
    if as_json:
        print(json.dumps({number.name: [number.value, number.unit] for number in numbers}))
        return
    for number in numbers:
        print(f"{number.name:<28}{number.value:>12.2f} {number.unit}")


if __name__ == "__main__":
    typer.run(main)
