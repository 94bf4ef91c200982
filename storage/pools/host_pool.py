"""The host tier's memory: one arena of KV blocks, pinned if there is a GPU.

A block is one contiguous run here and on the device, so one plain copy moves it. The arena is
registered with CUDA, because CUDA's allocator would round its size up to a power of two.

The arena is shared memory, so the disk's process writes a block to its file without a copy. The
arena is a nameless file in memory. The file is freed when the last process that has it open ends.
So nothing is left in /dev/shm, and a container's limit on /dev/shm does not apply. All pages are
taken at the start, so that a lack of memory is an error then instead of a signal later.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from storage.errors import PoolDoesNotFit
from storage.free_memory import host_free_bytes

GIB = 1 << 30
_PORTABLE = 1  # cudaHostRegisterPortable: pins memory for all CUDA contexts
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE: makes pages present and returns errors
# Bytes of one request for pages. During a request, changes of the process's memory mappings wait.
# Each request takes the GIL once.
_PART = 1024**2
_THREADS = 8


class HostPool:
    """The memory of the host tier, (num_blocks, block_bytes) uint8, allocated once.

    Any thread may allocate the memory, and one thread uses and drops it. Copies on the device's
    streams read and write the memory, so a slot is used again only after its copy's end. Messages
    between this process and the disk's process settle which of them may use a block.
    """

    def __init__(
        self, num_blocks: int, block_bytes: int, device: torch.device, available: int | None = None
    ) -> None:
        """Allocate the pool, pinned for copies to and from `device` if that is a GPU.

        `available` is the number of bytes that may be taken, if below the machine's free memory.
        Raises PoolDoesNotFit if `num_blocks` is under 1 or the host lacks the memory.
        """
        started = time.perf_counter()
        if num_blocks < 1 or block_bytes < 1:
            raise PoolDoesNotFit(f"a pool of {num_blocks} blocks holds no token")
        self.num_blocks = num_blocks
        self.block_bytes = block_bytes
        self.nbytes = num_blocks * block_bytes
        self._fd: int | None
        self._map, self._fd = _allocate(self.nbytes, available)
        flat = torch.frombuffer(self._map, dtype=torch.uint8)
        self.tensor: Tensor = flat.view(num_blocks, block_bytes)
        self.is_pinned = False
        if device.type == "cuda":
            self.pin()
        self.seconds = time.perf_counter() - started

    @property
    def descriptor(self) -> int:
        """The memory's file descriptor, for a process to map. Raises PoolDoesNotFit once closed."""
        if self._fd is None:
            raise PoolDoesNotFit("this memory has been given back")
        return self._fd

    def pin(self) -> None:
        """Pin the memory for all GPUs, from any thread.

        After PoolDoesNotFit the memory is freed. May run beside any other use of CUDA, except a
        graph capture of this thread.
        """
        result = _runtime().cudaHostRegister(self.tensor.data_ptr(), self.nbytes, _PORTABLE)
        if int(result) != 0:
            self.close()
            raise PoolDoesNotFit(f"{self.nbytes} bytes cannot be pinned: {result}")
        self.is_pinned = True

    def close(self) -> None:
        """Free the memory, after which the tensor must not be used. May be called twice."""
        if self.is_pinned:
            self.is_pinned = False
            _runtime().cudaHostUnregister(self.tensor.data_ptr())
        self.tensor = torch.empty(0, self.block_bytes, dtype=torch.uint8)
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        with suppress(BufferError):  # a view may still refer to the memory
            self._map.close()


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _allocate(num_bytes: int, available: int | None) -> tuple[mmap.mmap, int]:
    """Allocate shared memory and its file descriptor. Raises PoolDoesNotFit."""
    # Linux would grant more memory than is free, and later its OOM killer would end a process.
    there = host_free_bytes()
    free = there if available is None else min(available, there)
    if num_bytes > free:
        wanted, left = num_bytes / GIB, free / GIB
        raise PoolDoesNotFit(f"{wanted:.4g} GiB of blocks; {left:.4g} GiB of memory are free")
    fd = os.memfd_create("ratoon-blocks", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, num_bytes)
        memory = mmap.mmap(fd, num_bytes)
        _take_pages(fd, memory)
    except (OSError, ValueError) as error:
        os.close(fd)
        raise PoolDoesNotFit(f"{num_bytes} bytes of blocks: {error}") from error
    return memory, fd


def _take_pages(fd: int, memory: mmap.mmap) -> None:
    """Allocate every page. Raises OSError if memory runs out.

    Several threads take the pages, since one thread clears only 3 GB a second. One core is left to
    other work. Linux before 5.14 does not know this kind of request. There the file's pages are
    allocated instead.
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
    del view  # an open view would prevent the map from being closed
    if failed == {errno.EINVAL}:
        os.posix_fallocate(fd, 0, len(memory))
    elif failed:
        number = max(failed)
        raise OSError(number, os.strerror(number))
