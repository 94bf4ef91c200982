"""States moved between tiers arrive complete, or are reported as failed or lost.

KV blocks do not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from storage.disk.tier import DiskTier
from storage.layouts.state_layout import StateLayout, StateShape
from storage.move import BlockRecord, Move, Plan, StateSlots, Tier
from storage.pools.host_pool import HostPool
from storage.pools.state_pool import StatePool
from storage.tier_mover import TierMover, block_bytes_of
from tests.storage.scene import BLOCK_BYTES, CPU, disk_config, filled_pool, finish

KV = 4  # number of blocks in each tier
PARTS = 3
LAYOUT = StateLayout((StateShape(0, 0, 1, 1, 3 * BLOCK_BYTES // 4 - 8),), "float32")
RECORD = BlockRecord(b"k" * 16, b"p" * 16, b"n" * 16, "me", b"t" * 64)


class Tiers:
    def __init__(self, directory: Path) -> None:
        self.host = HostPool(KV + 2 * PARTS, BLOCK_BYTES, CPU)
        self.disk = DiskTier(disk_config(directory), self.host)
        self.kv = filled_pool(KV)
        self.states = StatePool(LAYOUT, 4, CPU, BLOCK_BYTES)
        assert self.states.slot_blocks == PARTS
        self.states.tensor[:] = torch.arange(self.states.tensor.numel()).view(4, -1) % 251
        slots = StateSlots(PARTS, {Tier.HOST: KV, Tier.DISK: KV})
        self.mover = TierMover(self.kv, self.host, self.disk, states=(self.states, slots))

    def move(self, source: Tier, of: int, target: Tier, to: int) -> str:
        move = Move(source, of, target, to, is_state=True)
        records = {move: RECORD} if Tier.DISK in (source, target) else {}
        self.mover.start(Plan((move,), records))
        ended = finish(self.mover, self.disk)
        assert (ended.done + ended.failed + ended.lost) == [move]
        return "done" if ended.done else "failed" if ended.failed else "lost"

    def close(self) -> None:
        self.mover.close()
        self.disk.close()
        self.host.close()


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    tiers = Tiers(tmp_path)
    yield tiers
    tiers.close()


@pytest.mark.parametrize("way", [(Tier.HOST,), (Tier.DISK,), (Tier.HOST, Tier.DISK)])
def test_a_state_comes_back_as_it_went(tiers: Tiers, way: tuple[Tier, ...]) -> None:
    want, kv = tiers.states.tensor.clone(), block_bytes_of(tiers.kv).clone()
    at, slot = Tier.DEVICE, 2
    for tier in way:
        assert tiers.move(at, slot, tier, 1) == "done"
        at, slot = tier, 1
    assert tiers.move(at, slot, Tier.DEVICE, 3) == "done"
    want[3] = want[2]
    assert torch.equal(tiers.states.tensor, want)
    assert torch.equal(block_bytes_of(tiers.kv), kv)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_state_is_lost_with_any_of_its_records(tiers: Tiers, part: int) -> None:
    assert tiers.move(Tier.DEVICE, 2, Tier.DISK, 1) == "done"
    kept = {slot: record.state_part for slot, record in tiers.disk.scan()}
    assert kept == {KV + PARTS + at: at for at in range(PARTS)}
    tiers.mover.start(Plan(erase=(KV + PARTS + part,)))
    while len(dict(tiers.disk.scan())) == PARTS:
        pass
    assert tiers.move(Tier.DISK, 1, Tier.DEVICE, 3) == "lost"
