"""The limit on the file's size, whatever other programs write to its disk."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from storage.disk.file.head_room import HeadRoom, disk_use, slots_in
from tests.storage.disk.support.counted_disk import CountedDisk

GIB, TIB = 1 << 30, 1 << 40


def head_room(disk: CountedDisk, max_bytes: int) -> HeadRoom:
    return HeadRoom(Path(), max_bytes, 0.85, disk.use)


def test_measures_the_disk_of_a_directory(tmp_path: Path) -> None:
    use = disk_use(tmp_path)
    assert 0 < use.left <= use.size


@pytest.mark.parametrize(
    ("size", "others", "max_bytes", "bound"),
    [
        (TIB, TIB // 2, 10 * GIB, 10 * GIB),
        (1000, 0, 10_000, 800),  # a fifth of the disk is left free
        (1000, 100, 10_000, 700),
        (10_000, 9_000, 1000, 800),  # a fifth of the file's own limit is left free
        (1000, 900, 10_000, 0),
    ],
    ids=["large disk", "small disk", "shared disk", "nearly full", "full"],
)
def test_a_file_may_come_to_what_leaves_more_than_the_head_room(
    size: int, others: int, max_bytes: int, bound: int
) -> None:
    disk = CountedDisk(size, others=others)
    found = head_room(disk, max_bytes).bound(0)
    assert bound - size // 100 <= found <= bound


def test_a_file_is_never_told_to_shrink() -> None:
    disk = CountedDisk(1000, file=500, others=480)
    assert head_room(disk, 10_000).bound(500) == 500


@pytest.mark.parametrize(
    ("left", "kept", "needed"),
    [(150, True, False), (149, False, False), (76, False, False), (75, False, True)],
)
def test_three_states_of_a_disk(left: int, kept: bool, needed: bool) -> None:
    room = head_room(CountedDisk(1000, others=1000 - left), 10_000)
    assert (room.is_kept(), room.is_needed_by_others()) == (kept, needed)


def test_erasing_in_need_may_go_down_to_the_head_room_and_on_if_others_did() -> None:
    assert head_room(CountedDisk(1000, file=800), 10_000).bound(800) == 800
    assert 845 < head_room(CountedDisk(1000, file=800), 10_000).bound(800, in_need=True) <= 850
    filled = CountedDisk(1000, file=800, others=60)
    assert 855 < head_room(filled, 10_000).bound(800, in_need=True) <= 865


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_written_the_file_leaves_the_head_room_to_others(seed: int) -> None:
    """Grow the file to its limit at every step, while other programs write and remove files.

    The head room always stays free.
    """
    rng = random.Random(seed)
    disk = CountedDisk(rng.randrange(1000, 10**9))
    max_bytes = rng.randrange(500, 2 * disk.size)
    room = head_room(disk, max_bytes)
    grown = 0
    for _ in range(500):
        disk.others = rng.randrange(disk.size - disk.taken)
        bound = room.bound(disk.taken)
        assert disk.taken <= bound <= max(max_bytes, disk.taken)
        if bound > disk.taken:
            disk.file = bound
            grown += 1
            assert disk.left >= 0.15 * min(disk.size, max_bytes)
        if room.is_needed_by_others():
            disk.file = 0
    assert grown


def test_slots_lie_below_the_high_water_mark_with_room_for_a_write() -> None:
    assert slots_in(1000, 10, 0.85) == 83
    assert slots_in(10, 10, 0.85) == 0
