"""Plans executed between tiers report each move once: done, failed or lost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from storage.copies import CopyDirection, CopyEvent, Copying, PlainCopies
from storage.disk.tier import DiskTier
from storage.errors import UnknownSlot, UnsupportedMove
from storage.move import Completed, Copied, Move, Plan, Tier
from storage.pools.device_pool import DevicePool
from storage.pools.host_digests import CHECKED_BYTES, HostDigests
from storage.pools.host_pool import HostPool
from storage.runs import Runs
from storage.tier_mover import TierMover, block_bytes_of
from tests.storage.fault_plan import COPY_FAILED, FaultPlan, FaultyCopies
from tests.storage.scene import (
    BLOCK_BYTES,
    CPU,
    LAYOUT,
    content,
    disk_config,
    filled_pool,
    finish,
    plan,
    record,
)

BLOCKS = 12


class Held:
    """An event that passes when a test says so."""

    seconds = 0.25

    def __init__(self) -> None:
        self.has_passed = False
        self.is_nearly_over = False
        self.promises = 0

    def query(self) -> bool:
        """Return whether the event has passed."""
        return self.has_passed

    def synchronize(self) -> None:
        """Let the event pass."""
        self.has_passed = True

    def release_early(self) -> bool:
        """Return `is_nearly_over`, and count how often it is true."""
        self.promises += self.is_nearly_over
        return self.is_nearly_over


class SlowCopies(PlainCopies):
    """Copies that end when a test lets their event pass, and that are recorded."""

    def __init__(self) -> None:
        self.events: list[Held] = []
        self.directions: list[CopyDirection] = []
        self.runs: list[Runs] = []
        self.after: list[CopyEvent] = []

    def record_event(self) -> CopyEvent:
        """Return a separate event for every plan."""
        return Held()

    def copy(self, direction: CopyDirection, runs: Runs, after: CopyEvent) -> Copying:
        """Record the copy."""
        super().copy(direction, runs, after)
        self.directions.append(direction)
        self.runs.append(runs)
        self.after.append(after)
        self.events.append(Held())
        return self.events[-1]


@pytest.fixture
def host() -> Iterator[HostPool]:
    host = HostPool(BLOCKS, BLOCK_BYTES, CPU)
    yield host
    host.close()


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DiskTier]:
    disk = DiskTier(disk_config(tmp_path_factory.mktemp("disk"), staging_bytes=4 * BLOCK_BYTES))
    yield disk
    disk.close()


def test_down_and_up_again(host: HostPool) -> None:
    pool = filled_pool(BLOCKS)
    want = block_bytes_of(pool).clone()
    mover = TierMover(pool, host)
    pairs = [(i, (5 * i) % BLOCKS) for i in range(BLOCKS)]
    down = plan(Tier.DEVICE, Tier.HOST, pairs)
    mover.start(down)
    assert mover.pending == BLOCKS
    ended = mover.poll()
    assert ended.done == [*down.moves]
    assert [(one.source, one.target, one.blocks) for one in ended.copied] == [
        (Tier.DEVICE, Tier.HOST, BLOCKS)
    ]
    assert ended.copied[0].seconds > 0
    assert mover.pending == 0
    pool.tensor.zero_()
    mover.start(plan(Tier.HOST, Tier.DEVICE, [(b, a) for a, b in pairs]))
    assert len(mover.poll().done) == BLOCKS
    assert torch.equal(block_bytes_of(pool), want)


@pytest.mark.parametrize("is_flipped", [True, False])
def test_a_block_that_changed_in_host_memory_is_lost(host: HostPool, is_flipped: bool) -> None:
    pool = filled_pool(BLOCKS)
    want = block_bytes_of(pool).clone()
    mover = TierMover(pool, host)
    mover.start(plan(Tier.DEVICE, Tier.HOST, [(i, i) for i in range(BLOCKS)]))
    assert len(mover.poll().done) == BLOCKS
    host.tensor[3, 17] ^= is_flipped
    pool.tensor.zero_()
    up = plan(Tier.HOST, Tier.DEVICE, [(i, i) for i in range(BLOCKS)])
    mover.start(up)
    ended = mover.poll()
    assert ended.lost == ([up.moves[3]] if is_flipped else [])
    assert ended.done == [move for move in up.moves if move not in ended.lost]
    assert mover.pending == 0
    want[3] *= not is_flipped
    assert torch.equal(block_bytes_of(pool), want)


def test_a_block_that_is_overwritten_by_another_copy_is_sound(host: HostPool) -> None:
    pool = filled_pool(BLOCKS)
    mover = TierMover(pool, host)
    for source in (0, 1):
        mover.start(plan(Tier.DEVICE, Tier.HOST, [(source, 0)]))
        mover.poll()
    mover.start(plan(Tier.HOST, Tier.DEVICE, [(0, 2)]))
    assert len(mover.poll().done) == 1


def test_a_changed_block_is_not_written_to_disk(tmp_path: Path, host: HostPool) -> None:
    with closing(DiskTier(disk_config(tmp_path), host)) as disk:
        mover = TierMover(filled_pool(BLOCKS), host, disk)
        mover.start(plan(Tier.DEVICE, Tier.HOST, [(0, 0), (1, 1)]))
        mover.poll()
        host.tensor[0, 0] ^= 1
        written = plan(Tier.HOST, Tier.DISK, [(0, 5), (1, 6)])
        mover.start(written)
        ended = finish(mover, disk)
    assert ended.lost == [written.moves[0]]
    assert ended.done == [written.moves[1]]


def test_of_a_large_batch_a_part_is_digested() -> None:
    memory = torch.zeros(8, CHECKED_BYTES // 2, dtype=torch.uint8)
    digests = HostDigests(memory)
    digests.arrived(range(8))
    memory[1, 0] = memory[2, 0] = 1
    assert digests.damaged(range(8)) == {1}
    digests.forget([1])
    assert digests.damaged(range(8)) == set()


def test_a_plan_is_one_batch_of_copies_each_way_behind_one_event(host: HostPool) -> None:
    copies = SlowCopies()
    mover = TierMover(filled_pool(BLOCKS), host, copies=copies)
    down = plan(Tier.DEVICE, Tier.HOST, [(0, 0), (1, 1), (2, 2), (5, 4)])
    up = plan(Tier.HOST, Tier.DEVICE, [(8, 8), (9, 9)])
    mover.start(Plan(down.moves + up.moves))
    assert copies.directions == [CopyDirection.UP, CopyDirection.DOWN]
    assert [len(runs) for runs in copies.runs] == [1, 2]
    assert copies.after[0] is copies.after[1]
    assert (mover.poll(), mover.pending) == (Completed(), 6)
    copies.events[0].has_passed = True
    timed = Copied(Tier.HOST, Tier.DEVICE, 2, Held.seconds)
    assert (mover.poll(), mover.pending) == (Completed(done=[*up.moves], copied=[timed]), 4)
    mover.start(plan(Tier.DEVICE, Tier.HOST, [(7, 7)]))
    copies.events[1].has_passed = True
    timed = Copied(Tier.DEVICE, Tier.HOST, 4, Held.seconds)
    assert (mover.poll(), mover.pending) == (Completed(done=[*down.moves], copied=[timed]), 1)
    mover.close()
    assert copies.events[2].has_passed
    assert mover.pending == 0


def test_a_load_is_promised_once_and_ends_all_the_same(host: HostPool) -> None:
    copies = SlowCopies()
    mover = TierMover(filled_pool(BLOCKS), host, copies=copies)
    up = plan(Tier.HOST, Tier.DEVICE, [(8, 8), (9, 9)])
    down = plan(Tier.DEVICE, Tier.HOST, [(0, 0)])
    mover.start(Plan(up.moves + down.moves))
    assert mover.poll() == Completed()
    copies.events[0].is_nearly_over = True
    assert mover.poll() == Completed(released=[*up.moves])
    assert (mover.poll(), mover.pending, copies.events[0].promises) == (Completed(), 3, 1)
    copies.events[0].has_passed = True
    assert mover.poll().done == [*up.moves]
    assert mover.pending == 1


def test_a_load_that_is_over_needs_no_promise(host: HostPool) -> None:
    copies = SlowCopies()
    mover = TierMover(filled_pool(BLOCKS), host, copies=copies)
    up = plan(Tier.HOST, Tier.DEVICE, [(8, 8)])
    mover.start(up)
    copies.events[0].is_nearly_over = copies.events[0].has_passed = True
    ended = mover.poll()
    assert (ended.done, ended.released, copies.events[0].promises) == ([*up.moves], [], 0)


def test_a_block_is_written_only_when_its_copy_is_done(disk: DiskTier, host: HostPool) -> None:
    copies = SlowCopies()
    mover = TierMover(filled_pool(BLOCKS), host, disk, copies)
    down = plan(Tier.DEVICE, Tier.DISK, [(0, 0), (1, 1), (2, 2)])
    mover.start(down)
    assert copies.directions == [CopyDirection.DOWN]
    assert copies.runs[0].num_blocks == 2  # half of the buffers; the other half is for reads
    disk.wait(0.01)
    assert mover.poll() == Completed()
    copies.events[0].has_passed = True
    while len(copies.events) < 2:
        assert mover.poll().failed == []
        disk.wait(0.02)
    copies.events[1].has_passed = True
    assert set(finish(mover, disk).done) <= set(down.moves)
    up = plan(Tier.DISK, Tier.DEVICE, [(0, 3), (1, 4), (2, 5)], numbers=[0, 1, 2])
    mover.start(up)
    while sum(runs.num_blocks for runs in copies.runs[2:]) < 3:
        assert mover.poll() == Completed()
        disk.wait(0.02)
    assert mover.pending == 3
    for event in copies.events:
        event.has_passed = True
    assert set(mover.poll().done) == set(up.moves)


@pytest.mark.parametrize(
    ("source", "target"),
    [(Tier.DEVICE, Tier.DEVICE), (Tier.HOST, Tier.HOST), (Tier.DEVICE, Tier.DISK)],
)
def test_moves_between_tiers_that_are_not_there_are_refused_and_none_is_begun(
    host: HostPool, source: Tier, target: Tier
) -> None:
    pool = filled_pool(BLOCKS)
    mover = TierMover(pool, host)
    good = plan(Tier.DEVICE, Tier.HOST, [(0, 0)])
    wrong = plan(source, target, [(1, 2)])
    with pytest.raises(UnsupportedMove, match=f"{source.value} to {target.value}"):
        mover.start(Plan(good.moves + wrong.moves, wrong.records))
    assert (mover.pending, mover.poll()) == (0, Completed())
    mover.start(good)
    assert mover.poll().done == [*good.moves]


def test_refuses_a_move_to_disk_without_its_record(disk: DiskTier) -> None:
    mover = TierMover(filled_pool(BLOCKS), None, disk)
    with pytest.raises(UnsupportedMove, match="no record"):
        mover.start(Plan((Move(Tier.DEVICE, 0, Tier.DISK, 0),)))


@pytest.mark.parametrize("pair", [(0, BLOCKS), (BLOCKS, 0), (-1, 0), (0, -1)])
def test_refuses_slots_outside_the_tiers(host: HostPool, pair: tuple[int, int]) -> None:
    mover = TierMover(filled_pool(BLOCKS), host)
    with pytest.raises(UnknownSlot):
        mover.start(plan(Tier.DEVICE, Tier.HOST, [(0, 0), pair]))
    assert mover.pending == 0


def test_from_disk_a_block_goes_to_the_device_over_the_staging_and_nowhere_else(
    disk: DiskTier, host: HostPool
) -> None:
    pool = filled_pool(BLOCKS)
    mover, blocks = TierMover(pool, host, disk), block_bytes_of(pool)
    mover.start(plan(Tier.DEVICE, Tier.DISK, [(i, i) for i in range(BLOCKS)]))
    assert len(finish(mover, disk).done) == BLOCKS
    pairs, numbers = [(i, BLOCKS - 1 - i) for i in range(BLOCKS)], list(range(BLOCKS))
    with pytest.raises(UnsupportedMove, match="disk to host"):
        mover.start(plan(Tier.DISK, Tier.HOST, pairs, numbers=numbers))
    mover.start(plan(Tier.DISK, Tier.DEVICE, pairs, numbers=numbers))
    assert len(finish(mover, disk).done) == BLOCKS
    for slot in range(BLOCKS):
        assert torch.equal(blocks[slot], content(BLOCKS - 1 - slot))


def test_any_single_copy_that_fails_is_told_once_and_harms_no_other(
    disk: DiskTier, host: HostPool
) -> None:
    """Let each copy of a trace over all tiers fail in turn: the failure is reported once, and harms
    no other move.
    """
    for nth in itertools.count(1):
        faults = FaultPlan("copy", nth, COPY_FAILED)
        pool = filled_pool(BLOCKS)
        mover = TierMover(pool, host, disk, FaultyCopies(faults))
        blocks = block_bytes_of(pool)
        on_host = _arrived(mover, disk, plan(Tier.DEVICE, Tier.HOST, [(i, i) for i in range(4)]))
        on_disk = _arrived(mover, disk, plan(Tier.DEVICE, Tier.DISK, [(i, i) for i in range(4, 9)]))
        blocks[:] = 0
        back = [(slot, slot) for slot in on_host]
        for slot in _arrived(mover, disk, plan(Tier.HOST, Tier.DEVICE, back)):
            assert torch.equal(blocks[slot], content(slot))
        back = [(slot, slot) for slot in on_disk]
        for slot in _arrived(mover, disk, plan(Tier.DISK, Tier.DEVICE, back)):
            assert torch.equal(blocks[slot], content(slot))
        assert disk.buffers.num_free == disk.buffers.pool.num_blocks
        disk.erase(range(BLOCKS))
        if not faults.has_struck:
            break
    assert nth > 4


def _arrived(mover: TierMover, disk: DiskTier, plan: Plan) -> list[int]:
    """Return the targets of completed moves; check that every move is reported once."""
    mover.start(plan)
    settled = finish(mover, disk)
    told = [*settled.done, *settled.failed, *settled.lost]
    assert sorted(told, key=lambda m: m.source) == sorted(plan.moves, key=lambda m: m.source)
    assert not settled.lost
    return [move.target for move in settled.done]


def test_an_erased_slot_can_be_filled_in_the_same_plan(disk: DiskTier) -> None:
    mover = TierMover(filled_pool(BLOCKS), None, disk)
    mover.start(plan(Tier.DEVICE, Tier.DISK, [(1, 1)]))
    finish(mover, disk)
    anew = plan(Tier.DEVICE, Tier.DISK, [(2, 1)])
    mover.start(Plan(anew.moves, anew.records, erase=(1,)))
    assert finish(mover, disk).done == [*anew.moves]
    read = Move(Tier.DISK, 1, Tier.DEVICE, 9)
    mover.start(Plan((read,), {read: record(2)}))
    assert finish(mover, disk).done == [read]


def test_a_wrong_record_is_lost_and_gone(disk: DiskTier) -> None:
    mover = TierMover(filled_pool(BLOCKS), None, disk)
    mover.start(plan(Tier.DEVICE, Tier.DISK, [(3, 3)]))
    finish(mover, disk)
    read = Move(Tier.DISK, 3, Tier.DEVICE, 9)
    for asked in (record(4), record(3)):
        mover.start(Plan((read,), {read: asked}))
        assert finish(mover, disk).lost == [read]
        mover.start(plan(Tier.DEVICE, Tier.DISK, [(5, 5)]))  # moves another block after the erasure
        finish(mover, disk)


@pytest.mark.gpu
def test_a_gpu_copies_both_ways_at_once_and_waits_for_what_was_launched(tmp_path: Path) -> None:
    device = torch.device("cuda")
    pool = DevicePool(LAYOUT, 512, device)
    host = HostPool(512, BLOCK_BYTES, device)
    assert host.tensor.is_pinned()
    disk = DiskTier(disk_config(tmp_path, num_blocks=512), host, device)
    mover = TierMover(pool, host, disk)
    blocks = block_bytes_of(pool)
    for i in range(256):
        host.tensor[i] = content(i)
    busy = torch.randn(4096, 4096, device=device)
    for _ in range(20):
        busy = busy @ busy  # work for which the copies must wait
        busy = busy / busy.norm()
    want = torch.stack([content(1000 + i) for i in range(256)])
    blocks[256:] = want.to(device, non_blocking=True)
    up = plan(Tier.HOST, Tier.DEVICE, [(i, i) for i in range(256)])
    down = plan(Tier.DEVICE, Tier.HOST, [(511 - i, 256 + i) for i in range(256)])
    mover.start(Plan(up.moves + down.moves))
    assert len(finish(mover).done) == 512
    assert torch.equal(blocks[:256].cpu(), host.tensor[:256])
    assert torch.equal(host.tensor[256:], want.flip(0))
    mover.start(plan(Tier.DEVICE, Tier.DISK, [(i, i) for i in range(512)]))
    assert len(finish(mover, disk).done) == 512
    pool.tensor.zero_()
    mover.start(plan(Tier.DISK, Tier.DEVICE, [(i, i) for i in range(512)]))
    assert len(finish(mover, disk).done) == 512
    assert torch.equal(blocks[256:].cpu(), want)
    mover.close()
    disk.close()
    host.close()
