"""A temporary directory belongs to one process, and is removed after that process."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.processes.temp_directory import has_room, temp_directory

PREFIX = "ratoon-test-"
HOLDER = """
import sys, time
from pathlib import Path
from gateway.processes.temp_directory import temp_directory
with temp_directory(sys.argv[1], "*.db", Path(sys.argv[2])) as directory:
    (directory / "counter_1.db").touch()
    print(directory, flush=True)
    time.sleep(600)
"""


def holder(within: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a process with a directory; yield both."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, PREFIX, str(within)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_it_is_private_and_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    with temp_directory(PREFIX, "*.db", tmp_path) as directory:
        assert directory.parent == tmp_path
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        (directory / "deeper").mkdir()
        (directory / "anything").touch()
    assert not directory.exists()


def test_the_next_start_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    process, left = holder(tmp_path)
    try:
        with temp_directory(PREFIX, "*.db", tmp_path):
            assert (left / "counter_1.db").exists(), "its process lives"
    finally:
        end(process)
    assert left.exists()
    with temp_directory(PREFIX, "*.db", tmp_path) as directory:
        assert not left.exists()
        assert list(tmp_path.iterdir()) == [directory]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        (f"{PREFIX}abcdefgh", "notes.txt"),
        (f"{PREFIX}abcdefgh", "deeper/counter_1.db"),
        (f"{PREFIX}other-abcdefgh", "counter_1.db"),
        ("ratoon-abcdefgh", "counter_1.db"),
    ],
)
def test_what_may_be_somebody_else_s_is_left(tmp_path: Path, name: str, file: str) -> None:
    path = tmp_path / name / file
    path.parent.mkdir(parents=True)
    path.touch()
    with temp_directory(PREFIX, "*.db", tmp_path):
        assert path.exists()
    assert path.exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    mine, link = tmp_path / "mine", tmp_path / f"{PREFIX}abcdefgh"
    mine.mkdir()
    (mine / "counter_1.db").touch()
    link.symlink_to(mine)
    with temp_directory(PREFIX, "*.db", tmp_path):
        assert (mine / "counter_1.db").exists()
    assert link.is_symlink()


def test_no_child_keeps_it(tmp_path: Path) -> None:
    with temp_directory(PREFIX, "*.db", tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            targets = []
            for path in Path(f"/proc/{child.pid}/fd").iterdir():
                # a file descriptor that the starting process has already closed
                with suppress(FileNotFoundError):
                    targets.append(os.readlink(path))
            assert not [target for target in targets if PREFIX in target]
        finally:
            child.kill()
            child.communicate()


def test_where_nothing_can_be_locked_there_is_a_directory_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with temp_directory(PREFIX, "*.db", tmp_path) as first:
        with temp_directory(PREFIX, "*.db", tmp_path) as second:
            assert sorted(tmp_path.iterdir()) == sorted([first, second])
        assert list(tmp_path.iterdir()) == [first]


def test_a_place_has_room_if_it_takes_files_and_has_so_many_bytes_left(tmp_path: Path) -> None:
    assert has_room(tmp_path, 1)
    assert not has_room(tmp_path, 1 << 60)
    assert not has_room(tmp_path / "missing", 1)
    assert not has_room(Path("/proc"), 1), "nothing is ever left of it"
