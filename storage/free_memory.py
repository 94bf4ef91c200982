"""How much memory of the host a process may still take.

Knows: where Linux and its control groups say so. Does not know: devices, or what it is wanted for.
"""

from __future__ import annotations

import os
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def host_free_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """Bytes that the system would hand out without swapping, within the control group's bound.

    Where the system does not tell, as outside Linux, a quarter of all memory is taken to be free.
    """
    available = _available(meminfo)
    if available is None:
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    bound = _left_in(cgroup)
    return available if bound is None else min(available, bound)


def _available(meminfo: Path) -> int | None:
    if not meminfo.exists():
        return None
    for line in meminfo.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def _left_in(cgroup: Path) -> int | None:
    """What a version 2 control group has left; None where there is none or no bound."""
    limit, used = cgroup / "memory.max", cgroup / "memory.current"
    if not (limit.exists() and used.exists()):
        return None
    text = limit.read_text().strip()
    return None if text == "max" else max(int(text) - int(used.read_text()), 0)
