"""The speed of moving blocks between tiers: device and host copies, disk reads and writes.

    python -m benchmarks.engine.tiers [--blocks 512] [--block-kib 2048] [--directory D]

Prints a JSON line for each direction. Without a CUDA device, copies between host and device are
left out. The disk is read from the page cache, right after it was written. Reads from a cold disk
take longer.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.record import emit, progress
from storage.disk.config import DiskConfig
from storage.disk.tier import DiskTier
from storage.move import BlockRecord, Move, Plan, Tier
from storage.pools.device_pool import DevicePool
from storage.pools.host_pool import HostPool
from storage.tier_mover import TierMover
from tests.doubles.layouts import alike_layers

REPEATS = 5
Pair = tuple[Tier, Tier]
DOWN, UP = (Tier.DEVICE, Tier.HOST), (Tier.HOST, Tier.DEVICE)


def plan_of(ways: list[Pair], num_blocks: int) -> Plan:
    """Plan `num_blocks` moves for each pair of tiers in `ways`. Each pair has its own slots."""
    moves: list[Move] = []
    records: dict[Move, BlockRecord] = {}
    for turn, (source, target) in enumerate(ways):
        for slot in range(turn * num_blocks, (turn + 1) * num_blocks):
            moves.append(Move(source, slot, target, slot))
            if Tier.DISK in (source, target):
                name = slot.to_bytes(16, "little")
                records[moves[-1]] = BlockRecord(name, name, name, "flow", name * 4)
    return Plan(tuple(moves), records)


def seconds_of(mover: TierMover, plan: Plan, disk: DiskTier | None = None) -> float:
    """Return the seconds from `start` until all moves have ended.

    Raises an error if a move has failed.
    """
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
    """Return the seconds of the fastest of several runs, after a warm-up run."""
    run()
    return min(run() for _ in range(times))


def pools(num_blocks: int, block_bytes: int, device: torch.device) -> tuple[DevicePool, HostPool]:
    """Create device and host pools of 2 x `num_blocks`, for moves in both directions at once."""
    # number of elements in a token's keys: a block has keys and values of 16 tokens, 2 bytes each
    numbers = block_bytes // 2 // 2 // 16
    layout = alike_layers(1, 1, numbers, "bfloat16", 16)
    host = HostPool(2 * num_blocks, block_bytes, device)
    return DevicePool(layout, 2 * num_blocks, device), host


def copies(num_blocks: int, block_bytes: int) -> None:
    """Measure copies from host to device, from device to host, and both at once."""
    pool, host = pools(num_blocks, block_bytes, torch.device("cuda"))
    mover = TierMover(pool, host)
    emit("pinning of host memory", gb_per_s=host.nbytes / 1e9 / host.seconds)
    size = num_blocks * block_bytes / 1e9
    for name, ways in (
        ("host to device", [UP]),
        ("device to host", [DOWN]),
        ("both at once", [UP, DOWN]),
    ):
        plan = plan_of(ways, num_blocks)
        seconds = best(REPEATS, lambda plan=plan: seconds_of(mover, plan))  # type: ignore[misc]
        emit(name, gb_per_s=len(ways) * size / seconds)
    plan, started = plan_of([UP], num_blocks), time.perf_counter()
    mover.start(plan)
    emit("start of such a plan", ms=(time.perf_counter() - started) * 1e3)
    mover.close()
    host.close()


def disk_moves(num_blocks: int, block_bytes: int, directory: Path, *, encrypt: bool) -> None:
    """Measure moves from host to disk, and from disk to a device pool in host memory."""
    pool, host = pools(num_blocks, block_bytes, torch.device("cpu"))
    host.tensor.random_()
    config = DiskConfig(
        directory=directory,
        max_bytes=int((num_blocks + 8) * (block_bytes + 16_384) / 0.8) + (1 << 20),
        block_bytes=block_bytes,
        fingerprint=bytes(32),
        encrypt=encrypt,
        read_deadline_s=60.0,
        write_deadline_s=600.0,
    )
    disk = DiskTier(config, host)
    mover = TierMover(pool, host, disk)
    size = num_blocks * block_bytes / 1e9
    write = seconds_of(mover, plan_of([(Tier.HOST, Tier.DISK)], num_blocks), disk)
    read_plan = plan_of([(Tier.DISK, Tier.DEVICE)], num_blocks)
    read = best(2, lambda: seconds_of(mover, read_plan, disk))
    disk.close()
    host.close()
    kind = "encrypted" if encrypt else "clear"
    emit(f"disk, {kind}", write_gb_per_s=size / write, read_gb_per_s=size / read)


def main(
    blocks: Annotated[int, typer.Option(help="To be moved at once.")] = 512,
    block_kib: Annotated[int, typer.Option(help="A block; 2048 is an 8B's.")] = 2048,
    directory: Annotated[Path, typer.Option(help="Where to write.")] = Path("/tmp"),
) -> None:
    """Measure all moves that this machine supports."""
    block_bytes = block_kib << 10
    if torch.cuda.is_available():
        copies(blocks, block_bytes)
    else:
        progress("no CUDA device: copies between host and device are left out")
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        for encrypt in (False, True):
            disk_moves(blocks, block_bytes, Path(scratch, f"{encrypt}"), encrypt=encrypt)


if __name__ == "__main__":
    typer.run(main)
