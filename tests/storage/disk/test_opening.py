"""A directory in any state is opened, or refused with a reason."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from storage.disk.config import DiskConfig
from storage.disk.file.head_room import HeadRoom
from storage.disk.opening import (
    OpenedFile,
    blocks_of,
    make_room,
    open_directory,
    quarantine_of,
)
from storage.disk.serving import serve
from storage.disk.wire import Channel, Open, SharedSegment
from storage.errors import DiskInUse
from tests.storage.disk.support.counted_disk import CountedDisk

CONFIG = DiskConfig(
    directory=Path(), max_bytes=4 << 20, block_bytes=2048, fingerprint=b"f" * 32, lock_wait_s=0.0
)


@dataclass
class Shut:
    set_aside: bool
    records: int


def close(opened: OpenedFile) -> Shut:
    shut = Shut(opened.set_aside, opened.file.num_records())
    opened.file.close()
    os.close(opened.lock)
    return shut


def wish(directory: Path, *, keep: bool = True, **changed: Any) -> Open:
    config = replace(CONFIG, directory=directory, **changed)
    return Open(config, 100, keep, staging=SharedSegment(0, 1), host=None)


def make(directory: Path) -> Path:
    """Make a directory whose file has one record; return the file."""
    opened = open_directory(wish(directory))
    with opened.file.changing() as changes:
        changes.put(1, b"header", b"payload" * 1000)
    assert close(opened) == Shut(set_aside=False, records=1)
    return directory / "blocks" / "data.mdb"


def test_an_existing_file_keeps_its_records(tmp_path: Path) -> None:
    make(tmp_path)
    assert close(open_directory(wish(tmp_path))) == Shut(set_aside=False, records=1)


@pytest.mark.parametrize(
    "changed",
    [{"fingerprint": b"g" * 32}, {"block_bytes": 4096}, {"encrypt": True}, {"max_bytes": 8192}],
    ids=["fingerprint", "block size", "encryption", "a smaller bound"],
)
def test_another_origin_is_removed_and_not_set_aside(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    make(tmp_path)
    changed = {"max_bytes": 1 << 20, **changed}
    if changed["max_bytes"] == 8192:
        changed["max_bytes"] = (tmp_path / "blocks" / "data.mdb").stat().st_size - 1
    assert close(open_directory(wish(tmp_path, **changed))) == Shut(set_aside=False, records=0)
    assert not quarantine_of(tmp_path).exists()


@pytest.mark.parametrize("size", [1, 4096, 8191, 8192, 12288])
def test_a_truncated_file_is_set_aside(tmp_path: Path, size: int) -> None:
    os.truncate(make(tmp_path), size)
    assert close(open_directory(wish(tmp_path))) == Shut(set_aside=True, records=0)
    assert (quarantine_of(tmp_path) / "data.mdb").stat().st_size == size


@pytest.mark.parametrize("page", [0, 1])
def test_a_damaged_head_is_set_aside(tmp_path: Path, page: int) -> None:
    data = make(tmp_path)
    content = bytearray(data.read_bytes())
    content[page * 4096 + 16] ^= 0xFF  # a byte of the file's magic number
    data.write_bytes(content)
    assert close(open_directory(wish(tmp_path))) == Shut(set_aside=True, records=0)


def test_a_file_is_set_aside_when_asked_for(tmp_path: Path) -> None:
    make(tmp_path)
    assert close(open_directory(wish(tmp_path, keep=False))) == Shut(set_aside=True, records=0)
    assert close(open_directory(wish(tmp_path, keep=False))) == Shut(set_aside=True, records=0)
    assert len(list(tmp_path.glob("*.quarantine"))) == 1


def test_an_empty_file_is_a_new_one(tmp_path: Path) -> None:
    os.truncate(make(tmp_path), 0)
    assert close(open_directory(wish(tmp_path))) == Shut(set_aside=False, records=0)


def test_a_directory_cannot_be_opened_twice(tmp_path: Path) -> None:
    first = open_directory(wish(tmp_path))
    with pytest.raises(DiskInUse, match="another engine"):
        open_directory(wish(tmp_path, keep=False))
    assert not quarantine_of(tmp_path).exists()
    close(first)
    close(open_directory(wish(tmp_path)))


@pytest.mark.parametrize("is_there", [True, False])
def test_a_refusal_that_nobody_hears_any_more_is_no_error(tmp_path: Path, is_there: bool) -> None:
    first = open_directory(wish(tmp_path))
    ours, its_own = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its_own:
        engine, disk = Channel(ours), Channel(its_own)
        engine.send(engine.encode(wish(tmp_path, lock_wait_s=0.0)))
        if not is_there:
            ours.close()
        assert serve(disk) == 1
        assert is_there is (ours.fileno() >= 0 and engine.receive() is not None), "the control"
    close(first)


@pytest.mark.parametrize(
    ("left", "quarantine", "file"),
    [(990, True, True), (300, False, True), (80, False, True), (43, False, False)],
    ids=["room for all", "less than the bound", "below the head-room", "far below it"],
)
def test_what_others_need_the_room_of_is_removed(
    tmp_path: Path, left: int, quarantine: bool, file: bool
) -> None:
    make(tmp_path)
    quarantine_of(tmp_path).mkdir()
    disk = CountedDisk(1 << 20, others=(1 << 20) - (left << 20) // 1000)
    removed = make_room(HeadRoom(tmp_path, 600 << 10, 0.85, disk.use))
    assert quarantine_of(tmp_path).exists() is quarantine
    assert blocks_of(tmp_path).exists() is file
    assert removed is not file


def test_there_may_be_nothing_to_remove(tmp_path: Path) -> None:
    disk = CountedDisk(1000, others=1000)
    assert not make_room(HeadRoom(tmp_path, 1000, 0.85, disk.use))
