"""Free memory is the least that system, control groups and the process's own limits leave."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from storage.free_memory import host_free_bytes, host_free_memory

MEMINFO = "MemTotal:       16000000 kB\nMemFree:          100000 kB\nMemAvailable:    8000000 kB\n"
AVAILABLE = 8_000_000 * 1024


def host(tmp_path: Path, meminfo: str | None, limit: str | None, used: int = 0) -> int:
    if meminfo is not None:
        (tmp_path / "meminfo").write_text(meminfo)
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")
    return host_free_bytes(tmp_path / "meminfo", tmp_path, tmp_path / "proc")


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [
        (None, 0, AVAILABLE),
        ("max", 5, AVAILABLE),
        (str(10**12), 5, AVAILABLE),
        (str(2**30), 2**29, 2**29),
        (str(2**30), 2**31, 0),
    ],
)
def test_the_smaller_of_system_and_control_group_counts(
    tmp_path: Path, limit: str | None, used: int, expected: int
) -> None:
    assert host(tmp_path, MEMINFO, limit, used) == expected


@pytest.mark.parametrize("meminfo", [None, "MemTotal:       16000000 kB\n"])
def test_a_system_that_does_not_tell_is_taken_to_have_a_quarter(
    tmp_path: Path, meminfo: str | None
) -> None:
    assert host(tmp_path, meminfo, None) > 2**24
    assert host(tmp_path, meminfo, "1000") == 1000


def write(directory: Path, **files: str | int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(f"{text}\n")


def room_in(tmp_path: Path, groups: str = "", **limits: int) -> int:
    """Return the free memory of a process in these control groups; 300 of its 1,000 pages are
    data.
    """
    write(tmp_path, meminfo=MEMINFO)
    write(tmp_path / "proc", cgroup=groups, statm="1000 500 200 100 0 300 0")
    return host_free_memory(
        tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "proc", limits
    ).bytes


V2 = "0::/a/b"
V1 = "7:cpu,cpuacct:/\n4:memory,hugetlb:/a/b\n0::/"


@pytest.mark.parametrize("group", ["", "a", "a/b"])
def test_a_group_is_bound_by_those_above_it(tmp_path: Path, group: str) -> None:
    assert room_in(tmp_path, V2) == AVAILABLE
    write(tmp_path / "cgroup" / "a" / "b", memory__max="max", memory__current=5)
    write(tmp_path / "cgroup" / group, memory__max=2**30, memory__current=2**28)
    assert room_in(tmp_path, V2) == 2**30 - 2**28


@pytest.mark.parametrize("group", ["", "a", "a/b"])
def test_version_1_has_a_hierarchy_for_memory(tmp_path: Path, group: str) -> None:
    unlimited = {"memory__limit_in_bytes": 2**63 - 4096, "memory__usage_in_bytes": 5}
    write(tmp_path / "cgroup" / "memory" / "a" / "b", **unlimited)
    assert room_in(tmp_path, V1) == AVAILABLE
    limited = {"memory__limit_in_bytes": 2**30, "memory__usage_in_bytes": 2**29}
    write(tmp_path / "cgroup" / "memory" / group, **limited)
    assert room_in(tmp_path, V1) == 2**29


def test_another_group_s_bound_does_not_count(tmp_path: Path) -> None:
    write(tmp_path / "cgroup" / "a" / "c", memory__max=1, memory__current=0)
    write(tmp_path / "cgroup" / "memory" / "c", memory__limit_in_bytes=1, memory__usage_in_bytes=0)
    assert room_in(tmp_path, V2) == AVAILABLE
    assert room_in(tmp_path, V1) == AVAILABLE


def test_what_was_read_of_files_can_be_taken_back(tmp_path: Path) -> None:
    stat = "anon 7\ninactive_file 1000\nactive_file 5"
    write(tmp_path / "cgroup", memory__max=5000, memory__current=4500, memory__stat=stat)
    assert room_in(tmp_path, "0::/") == 5000 - (4500 - 1000)


@pytest.mark.parametrize(("name", "pages"), [("RLIMIT_AS", 1000), ("RLIMIT_DATA", 300)])
def test_a_process_has_limits_of_its_own(tmp_path: Path, name: str, pages: int) -> None:
    taken = pages * os.sysconf("SC_PAGE_SIZE")
    assert room_in(tmp_path, V2, **{name: resource.RLIM_INFINITY}) == AVAILABLE
    assert room_in(tmp_path, V2, **{name: taken + 2**20}) == 2**20
    assert room_in(tmp_path, V2, **{name: taken - 1}) == 0
    room = host_free_memory(
        tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "proc", {name: taken + 2**20}
    )
    assert name in room.bound


def test_this_machine_has_memory() -> None:
    assert 2**24 < host_free_bytes() < 2**48
