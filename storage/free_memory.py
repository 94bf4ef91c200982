"""The host memory that a process may still take, and the limit that bounds it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
PROCESS = Path("/proc/self")
# For each limit, its number and the field of /proc/self/statm that counts against the limit: all
# mapped pages, or pages of data.
_LIMITS = {"RLIMIT_AS": (resource.RLIMIT_AS, 0), "RLIMIT_DATA": (resource.RLIMIT_DATA, 5)}


@dataclass(frozen=True, slots=True, order=True)
class FreeMemory:
    """Bytes that may still be taken, and the name of the limit that sets them."""

    bytes: int
    bound: str


@dataclass(frozen=True, slots=True)
class _Version:
    limit: str
    used: str
    reclaimable: str


_VERSION_1 = _Version("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _Version("memory.max", "memory.current", "inactive_file")


def host_free_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP, process: Path = PROCESS) -> int:
    """Return the bytes that may be taken without swapping, within all limits."""
    return host_free_memory(meminfo, cgroup, process).bytes


def host_free_memory(
    meminfo: Path = MEMINFO,
    cgroup: Path = CGROUP,
    process: Path = PROCESS,
    limits: Mapping[str, int] | None = None,
) -> FreeMemory:
    """Return the memory left under the tightest limit.

    `limits` are bytes by RLIMIT name, by default this process's. If the system does not report its
    free memory, as outside Linux, a quarter of all memory counts as free.
    """
    available = _available(meminfo)
    if available is None:
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    machine = FreeMemory(available, "the machine's free memory")
    return min([machine, *_groups(cgroup, process), *_own_limits(process, limits)])


def _available(meminfo: Path) -> int | None:
    if not meminfo.exists():
        return None
    for line in meminfo.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def _groups(cgroup: Path, process: Path) -> Iterator[FreeMemory]:
    """Yield the memory left in each control group around the process, innermost first."""
    for mount, group, version in _hierarchies(cgroup, process):
        # In a container, the mount itself may be the control group, while the path is that on the
        # host.
        for name in (group, *PurePosixPath(group).parents):
            room = _left_in(mount / str(name).lstrip("/"), version)
            if room is not None:
                yield room


def _hierarchies(cgroup: Path, process: Path) -> Iterator[tuple[Path, str, _Version]]:
    """Yield possible mounts of cgroups, each with the process's path in the mount, and the version.

    An unknown path is given as `/`.
    """
    paths = dict(_paths_of(process / "cgroup"))
    for mount in (cgroup, cgroup / "unified"):
        yield mount, paths.get("", "/"), _VERSION_2
    yield cgroup / "memory", paths.get("memory", "/"), _VERSION_1


def _paths_of(file: Path) -> Iterator[tuple[str, str]]:
    """Yield (controller, path) of each line `number:controllers:path`; "" in version 2."""
    if not file.exists():
        return
    for line in file.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _left_in(group: Path, version: _Version) -> FreeMemory | None:
    limit, used = group / version.limit, group / version.used
    if not (limit.exists() and used.exists()):
        return None
    text = limit.read_text().strip()
    if text == "max":
        return None
    taken = int(used.read_text()) - _reclaimable(group / "memory.stat", version.reclaimable)
    return FreeMemory(max(int(text) - max(taken, 0), 0), "the memory limit of a control group")


def _reclaimable(stat: Path, wanted: str) -> int:
    if not stat.exists():
        return 0
    for line in stat.read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == wanted:
            return int(value)
    return 0


def _own_limits(process: Path, limits: Mapping[str, int] | None) -> Iterator[FreeMemory]:
    statm = process / "statm"
    if not statm.exists():
        return
    pages = statm.read_text().split()
    for name, (number, field) in _LIMITS.items():
        if limits is None:
            limit = resource.getrlimit(number)[0]
        else:
            limit = limits.get(name, resource.RLIM_INFINITY)
        if limit != resource.RLIM_INFINITY:
            left = limit - int(pages[field]) * os.sysconf("SC_PAGE_SIZE")
            yield FreeMemory(max(left, 0), f"{name} of {limit} bytes")
