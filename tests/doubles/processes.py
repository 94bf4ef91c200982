"""The memory and CPU time of a process, and the cores on which it may run.

They are read from /proc.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def resident_mib(pid: int) -> float:
    """Return the memory of a process in MiB; 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def private_mib(pid: int) -> float:
    """Return the MiB that a process shares with no other process; 0 if it has ended."""
    return _mib(pid, "Private_")


def anonymous_mib(pid: int) -> float:
    """Return a process's anonymous memory in MiB, or 0 if the process has ended.

    Memory that n processes share counts for each process as an nth.
    """
    return _mib(pid, "Pss_Anon")


def _mib(pid: int, beginning: str) -> float:
    try:
        told = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    kib = (int(line.split()[1]) for line in told.splitlines() if line.startswith(beginning))
    return sum(kib) / 1024


def memory_of(pid: int) -> dict[str, bytes]:
    """Return the contents of a process's memory by region, with arguments and environment."""
    found = {}
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights, _, _, _, *name = line.split(maxsplit=5)
            begin, end = (int(one, 16) for one in place.split("-"))
            if rights.startswith("r"):
                # the region belongs to the kernel, or was unmapped
                with suppress(OSError, ValueError):
                    memory.seek(begin)
                    found[f"{pid} {place} {' '.join(name)}"] = memory.read(end - begin)
    return found


def busy_seconds(pid: int) -> float:
    """Return the CPU seconds of a process's threads so far, exact to the nanosecond.

    The time in /proc/PID/stat is not used, because its clock ticks may coincide with the engine's
    steps.
    """
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> list[int]:
    """Return the ids of the processes that a process's main thread has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descendants(root: int) -> list[tuple[int, str]]:
    """Return the ids of all processes below `root`, with their commands."""
    parents, commands = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
            )
            commands[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has ended meanwhile
    below = {root}
    for _ in parents:
        grown = below | {pid for pid, parent in parents.items() if parent in below}
        if grown == below:
            break
        below = grown
    return [(pid, commands[pid]) for pid in below if pid in commands and pid != root]


def disk_process(directory: Path) -> int:
    """Return the process below this process that has the disk tier of `directory` open."""
    lock = str((directory / "lock").resolve())
    for pid, _ in descendants(os.getpid()):
        with suppress(FileNotFoundError, PermissionError):  # the process has ended
            if lock in [os.readlink(open_file) for open_file in Path(f"/proc/{pid}/fd").iterdir()]:
                return pid
    raise LookupError(f"no process has {lock} open")


def cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def pin(pid: int, to: Iterable[int]) -> None:
    """Keep every thread of a process on these cores."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), set(to))
