"""The real disk process never fills its file system of a few megabytes.

The blocks have the embedded model's size, 33 pages each. So the file's free pages come in runs that
may be too short for the next block. When other programs fill the disk, the process writes nothing
more. If free space falls far below the head-room, the file is removed.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.disk.config import DiskConfig
from storage.disk.stats import DiskState
from storage.disk.tier import DiskTier
from storage.disk.wire import DiskOutcome, Segment
from storage.errors import DiskUnavailable
from storage.move import BlockRecord
from storage.pools.host_pool import HostPool
from tests.doubles.disk.small_disk import MIB, SmallDisk, small_disk
from tests.doubles.processes import disk_process
from tests.doubles.waiting import wait_for
from tests.seams.serving.test_workers import worker_pids
from tests.seams.support.server import running_server
from tests.storage.scene import CPU, FINGERPRINT, record

BLOCK_BYTES = 128 << 10
SIZE = 24 * MIB
PROMISED = 0.15
SOON_S = 20.0
BLOCKS = 64  # blocks in host memory, each with its own content


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "small", SIZE) as disk:
        yield disk


class Clock:
    """A clock that shows the real time until a test stops it."""

    def __init__(self) -> None:
        self.stands_at: float | None = None

    def __call__(self) -> float:
        return time.monotonic() if self.stands_at is None else self.stands_at


class Writer:
    """A disk tier of up to one GiB in a directory of `disk`, and a record of the written blocks."""

    def __init__(self, disk: SmallDisk) -> None:
        self.host = HostPool(BLOCKS, BLOCK_BYTES, CPU)
        for place in range(BLOCKS):
            self.host.tensor[place] = place + 1
        self.clock = Clock()
        self.tier = DiskTier(
            DiskConfig(
                directory=disk.path / "cache",
                max_bytes=1 << 30,
                block_bytes=BLOCK_BYTES,
                fingerprint=FINGERPRINT,
                staging_bytes=8 * BLOCK_BYTES,
                read_deadline_s=SOON_S,
                restart_after_s=0.0,
                full_retry_s=0.05,
            ),
            self.host,
            clock=self.clock,
        )
        self.held: dict[int, int] = {}  # block numbers by slot
        self.refused = 0
        self._number = 0

    def write(self, slots: list[int]) -> int:
        """Write blocks to these slots; return the number written."""
        asked = {}
        for slot in slots:
            self._number += 1
            place = self._number % BLOCKS
            ticket = self.tier.write(slot, self._record(self._number), Segment.HOST, place)
            asked[ticket] = slot, self._number
        done = [asked[t] for t, outcome in self._ends(len(asked)) if outcome is DiskOutcome.DONE]
        for slot in slots:
            self.held.pop(slot, None)
        self.held.update(done)
        self.refused += len(slots) - len(done)
        return len(done)

    def erase(self, slots: list[int]) -> None:
        self.tier.erase(slots)
        for slot in slots:
            self.held.pop(slot, None)

    def reads_right(self, slot: int) -> bool:
        """Return whether the block of `slot` is on disk. If it is, check each byte."""
        number, buffer = self.held[slot], self.tier.buffers.take()
        assert buffer is not None
        self.tier.read(slot, self._record(number), buffer)
        ((_, outcome),) = self._ends(1)
        if outcome is DiskOutcome.DONE:
            assert (self.tier.buffers.pool.tensor[buffer] == number % BLOCKS + 1).all()
        self.tier.buffers.give_back(buffer)
        return outcome is DiskOutcome.DONE

    def await_full(self, full: bool) -> None:
        wait_for(lambda: self._polled().stats.disk_full is full, SOON_S)

    def await_state(self, state: DiskState, generation: int) -> None:
        wait_for(
            lambda: (self._polled().state, self.tier.generation) == (state, generation), SOON_S
        )

    def close(self) -> None:
        self.tier.close()
        self.host.close()

    def _polled(self) -> DiskTier:
        assert not self.tier.poll()
        return self.tier

    def _ends(self, count: int) -> list[tuple[int, DiskOutcome]]:
        ends: list[tuple[int, DiskOutcome]] = []
        while len(ends) < count:
            ends += [(end.ticket, end.outcome) for end in self.tier.poll()]
            self.tier.wait(0.01)
        return ends

    def _record(self, number: int) -> BlockRecord:
        return record(number)


@pytest.fixture
def writer(disk: SmallDisk) -> Iterator[Writer]:
    writer = Writer(disk)
    yield writer
    writer.close()


def full(writer: Writer) -> Writer:
    """Return `writer` with as many blocks on disk as it has slots."""
    for slot in range(writer.tier.num_blocks):
        writer.write([slot])
    return writer


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_traffic_takes_the_head_room(disk: SmallDisk, writer: Writer, seed: int) -> None:
    rng = random.Random(seed)
    slots = range(writer.tier.num_blocks)
    written = 0
    with disk.watched():
        for _ in range(150):
            some = rng.sample(slots, rng.choice([1, 1, 2, 5, 20, min(60, len(slots))]))
            if rng.random() < 0.3:
                writer.erase(some)
            written += writer.write(rng.sample(some, rng.randint(1, len(some))))
    assert disk.least_left >= PROMISED
    assert written * BLOCK_BYTES > 2 * SIZE  # positive control: the file was filled and overwritten
    assert disk.least_left < 0.35
    assert all(writer.reads_right(slot) for slot in writer.held)
    assert not writer.tier.stats.disk_full
    assert writer.refused < written / 10


def test_below_the_head_room_nothing_is_written_and_reads_go_on(
    disk: SmallDisk, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    slots = list(range(writer.tier.num_blocks))
    assert writer.write(slots[:40]) == 40
    before = disk_process(writer.tier.directory)
    disk.fill(0.1)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            assert not writer.write(slots[40:60])
        writer.await_full(True)
    assert [line.message for line in caplog.records if "disk full: not writing" in line.message]
    assert len(caplog.records) == 1
    assert disk.left >= 0.099
    assert all(writer.reads_right(slot) for slot in writer.held)
    writer.erase(slots[:10])
    wait_for(lambda: writer.tier.poll() == [] and writer.tier.stats.records == 30, SOON_S)
    disk.empty()
    assert writer.write(slots[40:60]) == 20
    writer.await_full(False)
    assert (disk_process(writer.tier.directory), writer.tier.stats.failures) == (before, 0)


def test_where_others_fill_the_disk_the_file_goes_and_the_tier_comes_back(
    disk: SmallDisk, writer: Writer
) -> None:
    assert full(writer).held
    disk.fill(0.01)
    writer.write([0])
    writer.await_state(DiskState.UP, generation=1)
    assert disk.left > 0.5
    assert writer.write([0, 1]) == 2
    assert (writer.tier.stats.failures, writer.tier.stats.given_up) == (0, 1)
    assert writer.tier.stats.quarantines == 0


def test_a_disk_without_a_byte_is_no_failure_however_long(disk: SmallDisk, writer: Writer) -> None:
    """The process ends more often than the tier tolerates after other faults.

    The tier opens again once the disk has room.
    """
    assert full(writer).held
    writer.clock.stands_at = time.monotonic()  # otherwise the next process would start too soon
    disk.fill(0.01)
    writer.write([0])
    writer.await_state(DiskState.DOWN, generation=1)
    disk.fill(0.0)
    writer.clock.stands_at = None
    wait_for(lambda: writer.tier.poll() == [] and writer.tier.generation >= 5, SOON_S)
    assert writer.tier.stats.disk_full
    assert writer.tier.state is not DiskState.OFF
    disk.empty()
    wait_for(lambda: writer.tier.poll() == [] and writer.tier.is_up, SOON_S)
    assert writer.write([0, 1]) == 2
    assert writer.tier.stats.failures == 0


@pytest.mark.parametrize(("left", "kept"), [(0.1, True), (0.0, False)])
def test_a_start_on_a_full_disk_keeps_the_file_where_it_need_not_go(
    disk: SmallDisk, left: float, kept: bool
) -> None:
    first = full(Writer(disk))
    held = first.held
    first.close()
    disk.fill(left)
    again = Writer(disk)
    found = dict(again.tier.scan())
    assert bool(found) is kept
    if kept:
        again.held = {slot: held[slot] for slot in found}
        assert len(found) > len(held) * 0.7
        assert all(again.reads_right(slot) for slot in found)
        assert not again.write([0])
        again.await_full(True)
    else:
        assert disk.left > 0.5
        assert again.write([0]) == 1
    assert again.tier.stats.given_up == (not kept)
    assert again.tier.stats.quarantines == again.tier.stats.failures == 0
    again.close()


@pytest.mark.parametrize("left", [0.1, 0.0])
def test_a_first_start_on_a_full_disk_says_why_there_is_no_tier(
    disk: SmallDisk, left: float
) -> None:
    disk.fill(left)
    with pytest.raises(DiskUnavailable, match=r"left|No space"):
        Writer(disk)
    disk.empty()
    writer = Writer(disk)
    assert writer.write([0]) == 1
    writer.close()


def test_workers_outlive_a_full_temporary_directory(disk: SmallDisk, tmp_path: Path) -> None:
    """Workers map files of counters. If the disk lacked room for these, a signal would end them."""
    settings = {"RATOON_WORKERS": "2", "TMPDIR": str(disk.path)}
    with running_server(tmp_path / "data", settings) as server:
        wait_for(lambda: len(worker_pids(server)) == 2, SOON_S)
        workers = worker_pids(server)
        disk.fill(0.0)
        for number in range(8):
            # a new connection each time, which either worker may get
            with server.client() as client:
                asked = {"model": "handbook", "prompt": "Oslo", "max_tokens": 1}
                assert client.post("/v1/completions", json=asked).status_code == 200
                assert client.get(f"/v1/{number}").status_code == 404
        assert worker_pids(server) == workers
