"""The disk process restarts and keeps deadlines, and no failure gives the engine wrong blocks."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from storage.disk.config import DiskConfig
from storage.disk.opening import quarantine_of
from storage.disk.stats import DiskState
from storage.disk.tier import DiskTier
from storage.errors import DiskInUse, DiskUnavailable, PoolDoesNotFit
from storage.move import Completed, Move, Plan, Tier
from storage.pools.device_pool import DevicePool
from storage.pools.host_pool import HostPool
from storage.tier_mover import TierMover, block_bytes_of
from tests.doubles.processes import disk_process
from tests.storage.scene import (
    BLOCK_BYTES,
    CPU,
    content,
    disk_config,
    filled_pool,
    finish,
    plan,
    record,
)

BLOCKS = 40
ALL = [(i, i) for i in range(BLOCKS)]


class Clock:
    """A clock that moves when a test says so, or each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tick = 0.0

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


class Rig:
    """A disk, a device pool of as many blocks, and moves between the two."""

    def __init__(self, config: DiskConfig, clock: Clock | None = None) -> None:
        self.host = HostPool(BLOCKS, BLOCK_BYTES, CPU)
        self.disk = DiskTier(config, self.host, clock=clock or time.monotonic)
        self.pool: DevicePool = filled_pool(BLOCKS)
        self.mover = TierMover(self.pool, self.host, self.disk)

    @property
    def data(self) -> Path:
        return self.disk.directory / "blocks" / "data.mdb"

    def run(self, plan: Plan) -> Completed:
        self.mover.start(plan)
        return finish(self.mover, self.disk)

    def spill(self, pairs: list[tuple[int, int]] = ALL) -> Completed:
        return self.run(plan(Tier.DEVICE, Tier.DISK, pairs))

    def load(self, pairs: list[tuple[int, int]] = ALL) -> Completed:
        """Read slots into blocks of `content(target)` each; check the moves that are done."""
        blocks = block_bytes_of(self.pool)
        for _, target in pairs:
            blocks[target] = 0
        settled = self.run(plan(Tier.DISK, Tier.DEVICE, pairs))
        for move in settled.done:
            assert torch.equal(blocks[move.target], content(move.target)), "a wrong byte"
        return settled

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        os.kill(disk_process(self.disk.directory), how)

    def await_state(self, state: DiskState) -> None:
        while self.disk.state is not state:
            self.mover.poll()
            self.disk.wait(0.02)

    def await_generation(self, generation: int) -> None:
        while self.disk.generation < generation:
            self.mover.poll()
            self.disk.wait(0.02)

    def close(self) -> None:
        self.mover.close()
        self.disk.close()
        self.host.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(disk_config(tmp_path))
    yield rig
    rig.close()


def test_written_blocks_are_there_for_the_next_engine(tmp_path: Path) -> None:
    for encrypt in (False, True):
        config = disk_config(tmp_path / str(encrypt), encrypt=encrypt)
        rig = Rig(config)
        assert list(rig.disk.scan()) == []
        assert len(rig.spill().done) == BLOCKS
        rig.disk.note_flushes([f"fl_{n}" for n in range(2000)])
        rig.close()
        again = Rig(config)
        assert dict(again.disk.scan()) == {i: record(i) for i in range(BLOCKS)}
        assert again.disk.done_flushes() == [f"fl_{n}" for n in range(2000)]
        assert len(again.load().done) == BLOCKS
        assert again.disk.stats.records == BLOCKS
        assert again.disk.stats.bytes >= BLOCKS * BLOCK_BYTES
        again.close()


def test_queued_writes_are_made_although_the_engine_closes_at_once(
    tmp_path: Path,
) -> None:
    rig = Rig(disk_config(tmp_path))
    rig.run(plan(Tier.DEVICE, Tier.HOST, ALL))
    rig.mover.start(plan(Tier.HOST, Tier.DISK, ALL))
    rig.disk.close()
    rig.host.close()
    again = Rig(disk_config(tmp_path))
    assert len(again.load().done) == BLOCKS
    again.close()


@pytest.mark.parametrize(
    "change", [{"fingerprint": b"g" * 32}, {"encrypt": True}], ids=["fingerprint", "encryption"]
)
def test_records_of_another_origin_are_wiped(tmp_path: Path, change: dict[str, object]) -> None:
    rig = Rig(disk_config(tmp_path))
    rig.spill()
    rig.close()
    changed = Rig(replace(disk_config(tmp_path), **change))  # type: ignore[arg-type]
    assert list(changed.disk.scan()) == []
    assert len(changed.load().lost) == BLOCKS
    assert changed.disk.stats.quarantines == 0
    changed.close()


def test_a_second_engine_is_refused_and_the_first_goes_on(rig: Rig, tmp_path: Path) -> None:
    rig.spill()
    with pytest.raises(DiskInUse, match="another engine"):
        DiskTier(disk_config(tmp_path, lock_wait_s=0.1))
    assert len(rig.load().done) == BLOCKS


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DiskUnavailable):
        DiskTier(disk_config(tmp_path / "file" / "disk"))


def test_refuses_bytes_that_hold_no_block_and_memory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DiskUnavailable, match="no block"):
        DiskTier(disk_config(tmp_path, max_bytes=1000))
    with pytest.raises(PoolDoesNotFit):
        DiskTier(disk_config(tmp_path, block_bytes=1 << 44, max_bytes=1 << 60))
    assert not list(tmp_path.iterdir())


def test_a_file_truncated_while_open_ends_its_process_and_not_the_engine(rig: Rig) -> None:
    rig.spill()
    os.truncate(rig.data, rig.data.stat().st_size // 2)
    settled = rig.load()
    assert settled.failed
    assert len(settled.done) + len(settled.failed) + len(settled.lost) == BLOCKS
    rig.await_generation(1)
    _expect_empty_and_working(rig, quarantines=1)


def test_a_file_truncated_while_closed_is_set_aside(tmp_path: Path) -> None:
    rig = Rig(disk_config(tmp_path))
    rig.spill()
    data = rig.data
    rig.close()
    os.truncate(data, data.stat().st_size // 2)
    again = Rig(disk_config(tmp_path))
    assert again.disk.generation == 0
    _expect_empty_and_working(again, quarantines=1)
    again.close()


@pytest.mark.parametrize("page", [0, 1, 2])
def test_garbage_over_pages_is_never_read_as_a_block(tmp_path: Path, page: int) -> None:
    rig = Rig(disk_config(tmp_path))
    rig.spill()
    data = rig.data
    rig.close()
    rng = random.Random(page)
    content_of_file = bytearray(data.read_bytes())
    pages = [page] if page < 2 else rng.sample(range(2, len(content_of_file) // 4096), 6)
    for number in pages:  # pages 0 and 1 are LMDB's meta pages
        content_of_file[number * 4096 : number * 4096 + 32] = rng.randbytes(32)
    data.write_bytes(content_of_file)
    again = Rig(disk_config(tmp_path))
    if page < 2:
        _expect_empty_and_working(again, quarantines=1)
    else:
        settled = again.load()
        assert len(settled.done) < BLOCKS
    again.close()


def test_a_full_disk_fails_writes_and_reads_go_on(rig: Rig) -> None:
    rig.spill(ALL[:20])
    pid = disk_process(rig.disk.directory)
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (rig.data.stat().st_size, limits[1]))
    assert rig.spill(ALL[20:]).failed
    assert len(rig.load(ALL[:20]).done) == 20
    assert rig.disk.stats.refused > 0
    resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    rig.pool = filled_pool(BLOCKS)
    rig.mover = TierMover(rig.pool, rig.host, rig.disk)
    assert len(rig.spill(ALL[20:]).done) == 20
    assert len(rig.load().done) == BLOCKS
    assert (disk_process(rig.disk.directory), rig.disk.generation) == (pid, 0)


def test_a_stalled_disk_fails_reads_at_their_deadline_and_its_late_answers_are_void(
    tmp_path: Path,
) -> None:
    clock = Clock()
    rig = Rig(disk_config(tmp_path, read_deadline_s=0.5), clock)
    rig.spill()
    buffers = rig.disk.buffers
    free = buffers.num_free
    rig.kill(signal.SIGSTOP)
    loads = plan(Tier.DISK, Tier.DEVICE, ALL)
    rig.mover.start(loads)
    assert rig.mover.poll() == Completed()
    assert not buffers.num_free
    clock.now += 0.6
    settled = rig.mover.poll()
    assert set(settled.failed) == set(loads.moves)  # queued loads fail too
    assert not rig.mover.pending
    assert rig.disk.stats.late == free
    assert not buffers.num_free  # the disk process may still write to these buffers
    # fails at once, since the disk process does not answer
    assert len(rig.load(ALL[:3]).failed) == 3
    rig.kill(signal.SIGCONT)
    while buffers.num_free < free:
        assert rig.mover.poll() == Completed()
        rig.disk.wait(0.02)
    assert rig.disk.is_answering
    assert len(rig.load().done) == BLOCKS
    assert rig.disk.generation == 0
    rig.close()


def test_a_write_that_takes_too_long_ends_the_process_before_it_fails(tmp_path: Path) -> None:
    clock = Clock()
    rig = Rig(disk_config(tmp_path, write_deadline_s=5.0), clock)
    rig.run(plan(Tier.DEVICE, Tier.HOST, ALL))
    rig.kill(signal.SIGSTOP)
    stopped = disk_process(rig.disk.directory)
    rig.mover.start(plan(Tier.HOST, Tier.DISK, ALL[:5]))
    clock.now += 4.0
    assert rig.mover.poll() == Completed()
    clock.now += 2.0
    assert len(finish(rig.mover, rig.disk).failed) == 5
    assert not Path(f"/proc/{stopped}").exists()
    assert rig.disk.generation == 1
    rig.await_state(DiskState.UP)
    rig.close()


def test_a_scan_that_takes_too_long_ends_the_process_and_not_the_start(tmp_path: Path) -> None:
    clock = Clock()
    rig = Rig(disk_config(tmp_path), clock)
    rig.spill()
    assert len(list(rig.disk.scan())) == BLOCKS
    stopped = disk_process(rig.disk.directory)
    rig.kill(signal.SIGSTOP)
    clock.tick = 10.0
    assert list(rig.disk.scan()) == []
    assert rig.disk.generation == 1
    assert not Path(f"/proc/{stopped}").exists()
    clock.tick = 0.0
    _expect_empty_and_working(rig, quarantines=1)
    rig.close()


def test_a_killed_process_fails_what_is_under_way_and_comes_back_empty(rig: Rig) -> None:
    rig.spill(ALL[:20])
    rig.kill(signal.SIGSTOP)
    rig.mover.start(plan(Tier.DISK, Tier.DEVICE, ALL[:20]))
    rig.mover.start(plan(Tier.DEVICE, Tier.DISK, ALL[20:]))
    rig.kill()
    settled = finish(rig.mover, rig.disk)
    assert len(settled.failed) == BLOCKS
    assert rig.disk.buffers.num_free == rig.disk.buffers.pool.num_blocks
    rig.pool = filled_pool(BLOCKS)
    rig.mover = TierMover(rig.pool, rig.host, rig.disk)
    rig.await_generation(1)
    _expect_empty_and_working(rig, quarantines=1)


def test_a_process_that_keeps_dying_stays_off(tmp_path: Path) -> None:
    rig = Rig(disk_config(tmp_path, max_failures=3))
    for death in (1, 2, 3):
        rig.kill()
        rig.await_generation(death)
        if death < 3:
            rig.await_state(DiskState.UP)
    assert rig.disk.state is DiskState.OFF
    assert not rig.disk.is_up
    assert rig.disk.stats.failures == 3
    assert len(rig.spill().failed) == BLOCKS
    assert len(rig.load().failed) == BLOCKS
    rig.run(plan(Tier.DEVICE, Tier.HOST, ALL))  # moves without the disk continue
    rig.close()


def test_only_the_last_quarantined_file_is_kept(tmp_path: Path) -> None:
    rig = Rig(disk_config(tmp_path, max_failures=9))
    for death in (1, 2):
        rig.kill()
        rig.await_generation(death)
        rig.await_state(DiskState.UP)
    rig.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["blocks", "blocks.quarantine", "lock", "secret"]


def test_a_flush_that_is_done_leaves_no_quarantined_file(tmp_path: Path) -> None:
    rig = Rig(disk_config(tmp_path))
    quarantine_of(tmp_path).mkdir()
    rig.disk.erase([0])
    rig.disk.note_flushes([])
    assert rig.load().lost  # only then is the loss reported
    assert quarantine_of(tmp_path).exists()
    rig.disk.note_flushes(["flush"])
    rig.close()
    assert rig.disk.done_flushes() == ["flush"]
    assert not quarantine_of(tmp_path).exists()


@pytest.mark.parametrize("encrypt", [False, True], ids=["clear", "encrypted"])
def test_a_forgotten_owner_is_all_misses(tmp_path: Path, encrypt: bool) -> None:
    rig = Rig(disk_config(tmp_path, encrypt=encrypt))
    moves = [Move(Tier.DEVICE, i, Tier.DISK, i) for i in range(BLOCKS)]
    owners = ["gone" if i % 2 else "stays" for i in range(BLOCKS)]
    records = {m: record(m.source, owner) for m, owner in zip(moves, owners, strict=True)}
    assert len(rig.run(Plan(tuple(moves), records)).done) == BLOCKS
    quarantine_of(tmp_path).mkdir()
    rig.disk.forget_owner("gone")
    assert rig.disk.stats.forgetting == 1
    while rig.disk.stats.forgetting:
        rig.mover.poll()
        rig.disk.wait(0.02)
    back = [Move(Tier.DISK, i, Tier.DEVICE, i) for i in range(BLOCKS)]
    asked = {m: record(m.source, owner) for m, owner in zip(back, owners, strict=True)}
    settled = rig.run(Plan(tuple(back), asked))
    assert {owners[move.source] for move in settled.lost} == {"gone"}
    assert {owners[move.source] for move in settled.done} == {"stays"}
    assert len(settled.lost) == len(settled.done) == BLOCKS // 2
    assert not quarantine_of(tmp_path).exists()
    rig.close()


def test_an_owner_still_to_be_forgotten_is_forgotten_by_the_next_process(tmp_path: Path) -> None:
    rig = Rig(disk_config(tmp_path, encrypt=True))
    rig.spill()
    before = (tmp_path / "keys").read_bytes()
    rig.kill()
    rig.await_generation(1)
    rig.disk.forget_owner("flow")
    rig.await_state(DiskState.UP)
    while rig.disk.stats.forgetting:
        rig.mover.poll()
        rig.disk.wait(0.02)
    assert b"flow" in before
    assert b"flow" not in (tmp_path / "keys").read_bytes()
    rig.close()


def test_nothing_in_the_directory_is_for_others(rig: Rig) -> None:
    rig.spill()
    files = [path for path in rig.disk.directory.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"data.mdb", "lock.mdb", "lock", "secret"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)


def test_slots_outside_the_new_size_are_given_up(tmp_path: Path) -> None:
    config = disk_config(tmp_path)
    rig = Rig(config)
    last = rig.disk.num_blocks - 1
    rig.run(plan(Tier.DEVICE, Tier.DISK, [(0, last), (1, 3)]))
    rig.close()
    again = Rig(replace(config, max_bytes=config.max_bytes // 2))
    assert again.disk.num_blocks < last
    assert dict(again.disk.scan()) == {3: record(1)}
    while again.disk.stats.lost < 1 or again.disk.stats.records > 1:
        again.mover.poll()
        again.disk.wait(0.02)
    again.close()


def _expect_empty_and_working(rig: Rig, quarantines: int) -> None:
    rig.await_state(DiskState.UP)
    assert rig.disk.stats.quarantines == quarantines
    assert list(rig.disk.scan()) == []
    assert len(rig.load().lost) == BLOCKS
    rig.pool = filled_pool(BLOCKS)
    rig.mover = TierMover(rig.pool, rig.host, rig.disk)
    assert len(rig.spill().done) == BLOCKS
    assert len(rig.load().done) == BLOCKS
