"""Small pools, records and files that the tests of storage share."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor

from storage.disk.config import DiskConfig
from storage.disk.tier import DiskTier
from storage.move import BlockRecord, Completed, Move, Plan, Tier
from storage.pools.device_pool import DevicePool
from storage.tier_mover import TierMover, block_bytes_of
from tests.doubles.layouts import alike_layers

CPU = torch.device("cpu")
LAYOUT = alike_layers(1, 1, head_dim=16, dtype="float32", block_size=16)
BLOCK_BYTES = LAYOUT.block_bytes
FINGERPRINT = b"f" * 32


def record(number: int, owner: str = "flow") -> BlockRecord:
    """Make the record of block `number`, different for each number."""
    name = number.to_bytes(4, "little")
    return BlockRecord(
        key=b"key " + name * 3,
        parent_key=b"from" + name * 3,
        namespace=b"of  " + name * 3,
        owner=owner,
        token_ids=torch.arange(number, number + 16, dtype=torch.int32).numpy().tobytes(),
        hits=number,
    )


def content(number: int) -> Tensor:
    """Make content (block_bytes,) uint8: random, but always the same for a number."""
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, 256, (BLOCK_BYTES,), dtype=torch.uint8, generator=generator)


def filled_pool(num_blocks: int) -> DevicePool:
    """Make a device pool whose block i holds `content(i)`."""
    pool = DevicePool(LAYOUT, num_blocks, CPU)
    fill(pool, range(num_blocks))
    return pool


def fill(pool: DevicePool, numbers: range) -> None:
    """Put `content(numbers[i])` into block i."""
    flat = block_bytes_of(pool)
    for slot, number in enumerate(numbers):
        flat[slot] = content(number)


def disk_config(directory: Path, num_blocks: int = 64, **changed: object) -> DiskConfig:
    """Make a config with room for at least `num_blocks` blocks, with deadlines for a busy
    machine.
    """
    spare = 64 << 10  # size of LMDB's file before the first record
    settings: dict[str, object] = {
        "directory": directory,
        "max_bytes": int((num_blocks + 3) * (BLOCK_BYTES + 8192) / 0.85) + spare,
        "block_bytes": BLOCK_BYTES,
        "fingerprint": FINGERPRINT,
        "high_water": 0.85,
        "staging_bytes": 16 * BLOCK_BYTES,
        "read_deadline_s": 30.0,
        "lock_wait_s": 10.0,
        "restart_after_s": 0.0,
    }
    return DiskConfig(**{**settings, **changed})  # type: ignore[arg-type]


def plan(
    source: Tier, target: Tier, pairs: list[tuple[int, int]], numbers: list[int] | None = None
) -> Plan:
    """Plan moves between slots; on the disk, pair i has block `numbers[i]`, or the block numbered
    like its other slot.
    """
    moves = [Move(source, a, target, b) for a, b in pairs]
    if numbers is None:
        numbers = [m.target if source is Tier.DISK else m.source for m in moves]
    if Tier.DISK not in (source, target):
        return Plan(tuple(moves))
    return Plan(tuple(moves), {m: record(n) for m, n in zip(moves, numbers, strict=True)})


def finish(mover: TierMover, disk: DiskTier | None = None, within_s: float = 60.0) -> Completed:
    """Poll until nothing is pending; return all completed, failed and lost moves."""
    done: list[Move] = []
    failed: list[Move] = []
    lost: list[Move] = []
    give_up = time.monotonic() + within_s
    while mover.pending:
        settled = mover.poll()
        done += settled.done
        failed += settled.failed
        lost += settled.lost
        assert time.monotonic() < give_up, f"{mover.pending} moves do not end"
        if disk is not None and mover.pending:
            disk.wait(0.02)
    return Completed(done, failed, lost)
