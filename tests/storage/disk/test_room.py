from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage.disk.lmdb_file import FileUse
from storage.disk.room import Room
from storage.errors import FileFull
from tests.storage.scene import BLOCK_BYTES, disk_config

BOUND = 1_000_000


def room(directory: Path, high_water: float = 0.8) -> Room:
    return Room(directory, 100, 1000, 1000, high_water)


def test_stops_with_some_left_to_erase_with(tmp_path: Path) -> None:
    room(tmp_path).require(10, FileUse(890_000, 50_000, BOUND))
    with pytest.raises(FileFull, match="890010 of"):
        room(tmp_path).require(10, FileUse(890_010, 50_000, BOUND))


def test_stops_growing_before_the_disk_is_full(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    brim = disk.f_bavail * disk.f_frsize // 1000  # blocks: more than may be written
    bound = disk.f_blocks * disk.f_frsize * 10
    with pytest.raises(FileFull, match="bytes left"):
        room(tmp_path).require(brim, FileUse(0, 0, bound))
    room(tmp_path).require(brim, FileUse(0, 2 * brim * 1000, bound))  # it does not grow
    room(tmp_path, high_water=1.0).require(1, FileUse(0, 0, bound))


@pytest.mark.parametrize("blocks", [1, 40, 1000])
def test_as_many_slots_as_a_file_is_asked_to_have_room_for(tmp_path: Path, blocks: int) -> None:
    config = disk_config(tmp_path, num_blocks=blocks)
    assert config.num_blocks >= blocks
    assert config.num_blocks * config.block_bytes < config.max_bytes * config.high_water
    assert disk_config(tmp_path, max_bytes=4 * BLOCK_BYTES).num_blocks == 0
