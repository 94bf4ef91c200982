"""Memory of blocks that two processes can see: a nameless file that lives in memory alone.

It goes when the last process that has it open is gone, however that ends: nothing is left in
/dev/shm, and a container's limit on that does not apply. Its pages are taken at once, so that a
lack of memory is an error here and not a signal later.

Knows: bytes, blocks, descriptors. Does not know: pinning or tensors (`host_pool`).
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path

from storage.errors import PoolDoesNotFit

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


class SharedMemory:
    """`num_blocks` blocks of `block_bytes`, one after the other. No lock: owners take turns."""

    def __init__(self, num_blocks: int, block_bytes: int, available: int | None = None) -> None:
        """Raise PoolDoesNotFit where `num_blocks` is under 1 or there is not the memory.

        `available` is the bytes that may be taken, if fewer than this machine says it has.
        """
        if num_blocks < 1 or block_bytes < 1:
            raise PoolDoesNotFit(f"a pool of {num_blocks} blocks holds no token")
        self.num_blocks = num_blocks
        self.block_bytes = block_bytes
        self.nbytes = num_blocks * block_bytes
        # Checked here, for the kernel would kill somebody before it refused to give a page.
        free = available_bytes() if available is None else min(available, available_bytes())
        if self.nbytes > free:
            raise PoolDoesNotFit(f"{self.nbytes} bytes of blocks; {free} bytes of memory are free")
        fd = os.memfd_create("ratoon-blocks", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, self.nbytes)
            self.map = mmap.mmap(fd, self.nbytes)
        except (OSError, ValueError) as error:
            os.close(fd)
            raise PoolDoesNotFit(f"{self.nbytes} bytes of blocks: {error}") from error
        self._fd: int | None = fd

    @property
    def descriptor(self) -> int:
        """The open file, for a process that is to see it; PoolDoesNotFit once it is closed."""
        if self._fd is None:
            raise PoolDoesNotFit("this memory has been given back")
        return self._fd

    def close(self) -> None:
        """Close the descriptor, and the map where nothing refers to it. May be repeated."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        with suppress(BufferError):
            self.map.close()


def available_bytes() -> int:
    """Bytes that can be taken without pushing anybody out, within this container's limit."""
    fields = (line.split() for line in _MEMINFO.read_text().splitlines())
    free = next(int(field[1]) * 1024 for field in fields if field[0] == "MemAvailable:")
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except FileNotFoundError:
        return free
    return free if limit == "max" else min(free, max(int(limit) - used, 0))
