"""Ids of done flushes in a file: it keeps the last ids, and a damaged file counts as empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.disk.file.done_flushes import MOST, add_done, read_done


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    assert read_done(tmp_path) == []
    add_done(tmp_path, ["a", "b"])
    add_done(tmp_path, ["b", "c"])
    assert read_done(tmp_path) == ["a", "b", "c"]
    add_done(tmp_path, map(str, range(MOST - 1)))
    assert read_done(tmp_path) == ["c", *map(str, range(MOST - 1))]


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"{}", b"[1]", b"[" * 100_000])
def test_a_damaged_file_has_none(tmp_path: Path, content: bytes) -> None:
    add_done(tmp_path, ["a"])
    [file] = tmp_path.iterdir()
    file.write_bytes(content)
    assert read_done(tmp_path) == []
