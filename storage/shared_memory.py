"""Memory of blocks that two processes can see: a nameless file that lives in memory alone.

It goes when the last process that has it open is gone, however that ends: nothing is left in
/dev/shm, and a container's limit on that does not apply. Its pages are taken at once, so that a
lack of memory is an error here and not a signal later.

Knows: bytes, blocks, descriptors. Does not know: pinning or tensors (`host_pool`).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from storage.errors import PoolDoesNotFit
from storage.free_memory import host_free_bytes

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE: pages are made present, and errors are returned
# What one request asks for. Until it is done, whoever changes the process's mappings waits (large
# allocations do, and libraries as they are loaded); and each request takes the GIL once.
_PART = 1024**2
_THREADS = 8


class SharedMemory:
    """`num_blocks` blocks of `block_bytes`, one after the other.

    Concurrency: there is no lock. The two processes agree by messages which may use a block.
    """

    def __init__(self, num_blocks: int, block_bytes: int, available: int | None = None) -> None:
        """Raise PoolDoesNotFit where `num_blocks` is under 1 or there is not the memory.

        `available` is the bytes that may be taken, if fewer than this machine says it has.
        """
        if num_blocks < 1 or block_bytes < 1:
            raise PoolDoesNotFit(f"a pool of {num_blocks} blocks holds no token")
        self.num_blocks = num_blocks
        self.block_bytes = block_bytes
        self.nbytes = num_blocks * block_bytes
        # Checked here, since Linux overcommits: its OOM killer would end a process instead.
        there = host_free_bytes()
        free = there if available is None else min(available, there)
        if self.nbytes > free:
            raise PoolDoesNotFit(f"{self.nbytes} bytes of blocks; {free} bytes of memory are free")
        fd = os.memfd_create("ratoon-blocks", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, self.nbytes)
            self.map = mmap.mmap(fd, self.nbytes)
            _take_pages(fd, self.map)
        except (OSError, ValueError) as error:
            os.close(fd)
            raise PoolDoesNotFit(f"{self.nbytes} bytes of blocks: {error}") from error
        self._fd: int | None = fd

    @property
    def descriptor(self) -> int:
        """The open file, for a process that is to map it. Raises PoolDoesNotFit once closed."""
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


def _take_pages(fd: int, memory: mmap.mmap) -> None:
    """Have every page present. Raises OSError where there is not enough memory.

    By several threads, since one clears 3 GB a second and pinning would do it alone; a core is
    left to who does something else meanwhile. A system that does not know the request (Linux
    before 5.14) is asked for the file's pages instead.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    view = ctypes.c_char.from_buffer(memory)
    address, size = ctypes.addressof(view), len(memory)
    num_threads = max(1, min(_THREADS, len(os.sched_getaffinity(0)) - 1))
    share = -(-size // (num_threads * _PART)) * _PART

    def populate(first: int) -> int:
        for start in range(first, min(first + share, size), _PART):
            length = ctypes.c_size_t(min(_PART, size - start))
            place = ctypes.c_void_p(address + start)
            if libc.madvise(place, length, _POPULATE_WRITE):
                return ctypes.get_errno()
        return 0

    with ThreadPoolExecutor(num_threads) as threads:
        failed = set(threads.map(populate, range(0, size, share))) - {0}
    del view  # or the map could not be closed
    if failed == {errno.EINVAL}:
        os.posix_fallocate(fd, 0, len(memory))
    elif failed:
        number = max(failed)
        raise OSError(number, os.strerror(number))
