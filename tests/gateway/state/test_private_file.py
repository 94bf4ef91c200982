from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from gateway.state.private_file import (
    FileExposed,
    FileMissing,
    PrivateFileDamaged,
    create_private,
    read_handed_in,
    read_private,
    replace_private,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "secret"


def test_a_created_file_is_read_back_and_open_to_its_owner_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        assert create_private(path, b"content")
    finally:
        os.umask(before)
    assert read_private(path) == b"content"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["secret"]


def test_create_never_writes_over(path: Path) -> None:
    assert create_private(path, b"first")
    assert not create_private(path, b"second")
    assert read_private(path) == b"first"
    assert os.listdir(path.parent) == ["secret"]


def test_of_many_that_create_at_once_one_wins_and_all_read_the_same(path: Path) -> None:
    start = threading.Barrier(16)
    won: list[bytes] = []
    read: list[bytes] = []

    def contend(number: int) -> None:
        content = bytes([number]) * 4096
        start.wait()
        if create_private(path, content):
            won.append(content)
        read.append(read_private(path))

    threads = [threading.Thread(target=contend, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert read == won * 16
    assert os.listdir(path.parent) == ["secret"]


def test_replace_swaps_the_content(path: Path) -> None:
    create_private(path, b"old")
    replace_private(path, b"new")
    assert read_private(path) == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["secret"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o601, 0o666])
def test_a_file_open_to_others_is_refused(path: Path, mode: int) -> None:
    create_private(path, b"the-content")
    path.chmod(mode)
    with pytest.raises(FileExposed, match=f"chmod 600 {path}") as refusal:
        read_private(path)
    assert "the-content" not in str(refusal.value)
    path.chmod(0o600)
    assert read_private(path) == b"the-content"
    path.chmod(0o400)
    assert read_private(path) == b"the-content"


def test_a_missing_file_says_so(path: Path) -> None:
    with pytest.raises(FileMissing, match=str(path)):
        read_private(path)


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError):
        replace_private(tmp_path / "missing" / "file", b"x")
    assert os.listdir(tmp_path) == ["taken"]


class TestHandedIn:
    @pytest.mark.parametrize("mode", [0o600, 0o644, 0o440])
    def test_it_may_be_read_by_others_and_ends_with_its_line(self, path: Path, mode: int) -> None:
        path.write_text("the text\r\n")
        path.chmod(mode)
        assert read_handed_in(path) == "the text"

    @pytest.mark.parametrize("mode", [0o602, 0o666, 0o646])
    def test_one_that_anybody_may_write_is_refused(self, path: Path, mode: int) -> None:
        path.write_text("the-content")
        path.chmod(mode)
        with pytest.raises(FileExposed, match=f"chmod o-w {path}") as refusal:
            read_handed_in(path)
        assert "the-content" not in str(refusal.value)

    @pytest.mark.parametrize("content", [b"", b"\n", b" \t\r\n", b"\xff\xfe"])
    def test_what_is_empty_or_no_text_is_damage(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        with pytest.raises(PrivateFileDamaged, match=str(path)):
            read_handed_in(path)

    def test_a_missing_one_says_so(self, path: Path) -> None:
        with pytest.raises(FileMissing, match=str(path)):
            read_handed_in(path)
