"""When writes are refused."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from storage.disk.lmdb_file import FileUse
from storage.disk.room import DiskUse, Room, disk_use
from storage.errors import FileFull
from tests.storage.scene import BLOCK_BYTES, disk_config

BOUND = 1_000_000
GIB, TIB = 1 << 30, 1 << 40


def room(directory: Path, high_water: float = 0.8) -> Room:
    return Room(directory, 100, 1000, 1000, high_water)


def test_stops_with_some_left_to_erase_with(tmp_path: Path) -> None:
    room(tmp_path).require(10, FileUse(890_000, 50_000, BOUND))
    with pytest.raises(FileFull, match="890010 of"):
        room(tmp_path).require(10, FileUse(890_010, 50_000, BOUND))


def test_stops_growing_before_the_disk_is_full(tmp_path: Path) -> None:
    disk = disk_use(tmp_path)
    brim = disk.left // 1000  # blocks: more than may be written
    bound = disk.size * 10
    with pytest.raises(FileFull, match="bytes left"):
        room(tmp_path).require(brim, FileUse(0, 0, bound))
    room(tmp_path).require(brim, FileUse(0, 2 * brim * 1000, bound))  # it does not grow
    room(tmp_path, high_water=1.0).require(1, FileUse(0, 0, bound))


@pytest.mark.parametrize(
    ("bound", "fits"),
    [(10 * GIB, True), (40 * GIB, False), (10 * TIB, False)],
    ids=["small file", "large file", "larger than its disk"],
)
def test_a_disk_keeps_what_the_file_would_leave_or_a_small_disk_its_share(
    tmp_path: Path, bound: int, fits: bool
) -> None:
    """5 GiB left of a TiB, of which a fifth is 205: more than a small file can ever take."""
    beside = Room(tmp_path, 100, 1000, 1000, 0.8, lambda _: DiskUse(TIB, 5 * GIB))
    with nullcontext() if fits else pytest.raises(FileFull, match="5368709120 bytes left"):
        beside.require(1, FileUse(0, 0, bound))


@pytest.mark.parametrize("blocks", [1, 40, 1000])
def test_as_many_slots_as_a_file_is_asked_to_have_room_for(tmp_path: Path, blocks: int) -> None:
    config = disk_config(tmp_path, num_blocks=blocks)
    assert config.num_blocks >= blocks
    assert config.num_blocks * config.block_bytes < config.max_bytes * config.high_water
    assert disk_config(tmp_path, max_bytes=4 * BLOCK_BYTES).num_blocks == 0
