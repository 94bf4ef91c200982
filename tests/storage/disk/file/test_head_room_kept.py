"""The file leaves the head room free, whatever other programs write.

The files are LMDB's. Their file systems are simulated, so the tests need no root privileges.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from storage.disk.file.head_room import HeadRoom, slots_in
from storage.disk.file.lmdb_file import LmdbFile
from storage.disk.file.records import DiskRecords, ScanRoom, ToWrite
from storage.disk.file.seal import RecordSeal
from storage.errors import DiskFull, FileFull
from tests.storage.disk.support.bench import Bench
from tests.storage.disk.support.counted_disk import CountedDisk
from tests.storage.scene import FINGERPRINT, record

MIB = 1 << 20
SIZE = 16 * MIB
BLOCK_BYTES = 128 << 10
RECORD_BYTES = BLOCK_BYTES + 8192
HEAD_ROOM = 0.15 * SIZE
PAYLOAD = memoryview(bytes(BLOCK_BYTES))


class Churn:
    """Random writes and erasures of blocks, each of 33 adjacent pages."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.disk = CountedDisk(SIZE, directory / "blocks")
        head_room = HeadRoom(directory, 1 << 30, 0.85, self.disk.use)
        self.file = LmdbFile(directory / "blocks", head_room.bound(0))
        num_slots = slots_in(self.file.use().bound, RECORD_BYTES, 0.85)
        seal = RecordSeal(Bench(directory / "keys").keys, FINGERPRINT, BLOCK_BYTES)
        self.records = DiskRecords(
            self.file, seal, ScanRoom(head_room, num_slots, BLOCK_BYTES, RECORD_BYTES)
        )
        self.slots = range(num_slots)
        self.rng = random.Random(seed)
        self.written = self.refused = 0

    def step(self) -> bool:
        """Do one transaction; return whether it found room."""
        rng = self.rng
        some = rng.sample(self.slots, rng.choice([1, 1, 2, 5, 20]))
        erased = some if rng.random() < 0.3 else []
        kept = some[: rng.randint(0 if erased else 1, len(some))]
        try:
            self.records.write([ToWrite(slot, record(slot), PAYLOAD) for slot in kept], erased)
        except FileFull:
            self.refused += 1
            return False
        self.written += len(kept)
        return True


@pytest.mark.parametrize("seed", range(3))
def test_any_traffic_leaves_the_head_room(tmp_path: Path, seed: int) -> None:
    (tmp_path / "keys").mkdir()
    churn = Churn(tmp_path, seed)
    for _ in range(200):
        churn.step()
        assert churn.disk.left >= HEAD_ROOM
    assert churn.written * BLOCK_BYTES > 2 * SIZE
    assert churn.disk.left < 0.35 * SIZE  # positive control: the disk was filled
    assert churn.refused < 20
    churn.file.close()


@pytest.mark.parametrize("seed", range(3))
def test_what_others_write_is_never_added_to(tmp_path: Path, seed: int) -> None:
    """Write nothing into the head room, while other programs write and remove files at random."""
    (tmp_path / "keys").mkdir()
    churn, rng = Churn(tmp_path, seed), random.Random(100 + seed)
    grew = stood = 0
    for _ in range(200):
        if rng.random() < 0.3:
            churn.disk.others = rng.randrange(max(SIZE - churn.disk.taken, 1))
        before, taken = churn.disk.left, churn.disk.taken
        churn.step()
        grown = churn.disk.taken - taken
        grew += grown > 0
        stood += before < HEAD_ROOM
        assert grown <= 0 or churn.disk.left >= HEAD_ROOM
    assert grew
    assert stood
    churn.file.close()


def test_erasing_in_need_is_possible_when_others_took_the_rest(tmp_path: Path) -> None:
    """Erase although other programs took the rest of the disk.

    A file without a free page must grow even to erase.
    """
    (tmp_path / "keys").mkdir()
    churn = Churn(tmp_path, 0)
    some = churn.slots[: len(churn.slots) // 2]
    for slot in some:
        churn.records.write([ToWrite(slot, record(slot), PAYLOAD)])
    churn.disk.others = SIZE - churn.disk.taken - int(0.1 * SIZE)
    with pytest.raises(DiskFull):
        churn.records.write([ToWrite(0, record(0), PAYLOAD)])
    for slot in some:
        churn.records.write([], [slot], in_need=True)
    assert churn.file.num_records() == 0
    assert churn.disk.left > 0.09 * SIZE
    churn.file.close()
