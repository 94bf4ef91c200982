"""Writes refused for lack of room, in the file or on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.disk.file.head_room import DiskUse, HeadRoom
from storage.disk.file.lmdb_file import FileUse
from storage.disk.file.records import ScanRoom
from storage.errors import DiskFull, FileFull
from tests.storage.scene import BLOCK_BYTES, disk_config

BOUND = 1_000_000


def room(left: int, num_slots: int = 100, max_bytes: int = BOUND) -> ScanRoom:
    """Make a check of room on a disk ten times as large as the file's limit, with `left` bytes
    free.
    """
    disk = DiskUse(10 * BOUND, left)
    return ScanRoom(HeadRoom(Path(), max_bytes, 0.8, lambda _: disk), num_slots, 1000, 1000)


def test_stops_with_some_left_to_erase_with() -> None:
    room(BOUND).require(10, FileUse(890_000, BOUND))
    with pytest.raises(FileFull, match="890010 of") as full:
        room(BOUND).require(10, FileUse(890_010, BOUND))
    assert not isinstance(full.value, DiskFull)


def test_stops_when_the_disk_has_less_than_its_head_room_whatever_is_free_in_the_file() -> None:
    room(200_000).require(1, FileUse(0, BOUND))
    with pytest.raises(DiskFull, match="too little is left"):
        room(199_999).require(1, FileUse(0, BOUND))


def test_a_file_that_the_disk_has_cut_down_is_full_because_of_the_disk() -> None:
    full = FileUse(500_000, 500_000)
    with pytest.raises(DiskFull):
        room(BOUND, num_slots=500).require(1, full)
    with pytest.raises(FileFull) as fits:  # the limit would suffice for 300 slots
        room(BOUND, num_slots=300).require(1, full)
    assert not isinstance(fits.value, DiskFull)


@pytest.mark.parametrize("blocks", [1, 40, 1000])
def test_as_many_slots_as_a_file_is_asked_to_have_room_for(tmp_path: Path, blocks: int) -> None:
    config = disk_config(tmp_path, num_blocks=blocks)
    assert config.num_blocks >= blocks
    assert config.num_blocks * config.block_bytes < config.max_bytes * config.high_water
    assert disk_config(tmp_path, max_bytes=4 * BLOCK_BYTES).num_blocks == 0
