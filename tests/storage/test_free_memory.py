"""How much memory is to be had, from what the system writes down."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.free_memory import host_free_bytes

MEMINFO = "MemTotal:       16000000 kB\nMemFree:          100000 kB\nMemAvailable:    8000000 kB\n"
AVAILABLE = 8_000_000 * 1024


def host(tmp_path: Path, meminfo: str | None, limit: str | None, used: int = 0) -> int:
    if meminfo is not None:
        (tmp_path / "meminfo").write_text(meminfo)
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")
    return host_free_bytes(tmp_path / "meminfo", tmp_path)


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


def test_this_machine_has_memory() -> None:
    assert 2**24 < host_free_bytes() < 2**48
