"""Disk space is reserved, and given up when the disk is really full."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.state.reserved_room import BALLAST_BYTES, BALLAST_FILE, START_BYTES, ReservedRoom
from tests.doubles.disk.damage import fill_up, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    try:
        with small_disk(tmp_path / "disk") as directory:
            yield directory
    except PermissionError as error:
        pytest.skip(f"no file system of one's own: {error}")


def size(directory: Path) -> int:
    return (directory / BALLAST_FILE).stat().st_size


def test_it_is_private_and_takes_real_room(tmp_path: Path) -> None:
    room = ReservedRoom(tmp_path)
    room.look()
    found = (tmp_path / BALLAST_FILE).stat()
    assert (found.st_size, stat.S_IMODE(found.st_mode)) == (BALLAST_BYTES, 0o600)
    assert found.st_blocks * 512 >= BALLAST_BYTES
    assert room.fault is None
    assert not room.lacks_room()


def test_it_is_given_up_but_for_what_a_start_needs(tmp_path: Path) -> None:
    room = ReservedRoom(tmp_path)
    assert not room.give_up()  # nothing has been reserved
    room.look()
    assert room.give_up()
    assert size(tmp_path) == START_BYTES
    assert not room.give_up()
    assert room.fault is not None
    assert room.give_up(keep=0)
    room.look()  # reserves space again
    assert size(tmp_path) == BALLAST_BYTES
    assert room.fault is None


def test_an_end_with_room_gives_up_nothing(tmp_path: Path) -> None:
    room = ReservedRoom(tmp_path)
    room.look()
    room.end()
    assert size(tmp_path) == BALLAST_BYTES


def test_a_full_disk_is_seen_and_the_ballast_is_room_on_it(disk: Path) -> None:
    room = ReservedRoom(disk)
    room.look()
    filling = fill_up(disk)
    assert os.statvfs(disk).f_bavail == 0
    assert room.lacks_room()
    room.look()
    assert room.fault is not None
    assert (room.fault.status, "make room" in room.fault.reason) == ("disk_full", True)
    assert room.give_up()
    (disk / "written").write_bytes(b"x" * START_BYTES)
    room.look()
    assert size(disk) == START_BYTES, "a disk that is low is left alone"
    filling.unlink()
    recovered = ReservedRoom(disk)
    recovered.look()
    assert (size(disk), recovered.fault) == (BALLAST_BYTES, None)


def test_what_there_is_is_taken_at_an_end(disk: Path) -> None:
    filling = fill_up(disk)
    os.truncate(filling, filling.stat().st_size - (1 << 20))
    ReservedRoom(disk).fill()
    assert 0 < size(disk) <= 1 << 20
