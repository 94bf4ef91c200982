"""The pools of other GPUs on this host, from which blocks are copied directly between GPUs.

CUDA can share an allocation between processes of one host (IPC). A copy from a neighbour's pool
becomes valid only when the neighbour confirms that it kept the blocks until the copy's end
(`arriving`).
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.exchange.wire import PoolHandle
from engine.link.address import is_tcp
from storage.batched_copies import CopyPieces, open_batched_copies
from storage.copies import CopyEvent
from storage.errors import CopyFailed

HANDLE_BYTES = 64  # CUDA's constant CU_IPC_HANDLE_SIZE
_LAZY_PEER_ACCESS = 1  # CUDA's flag CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
_DRIVER = "libcuda.so.1"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Slots = npt.NDArray[np.int64]


class CannotOpen(Exception):
    """An error for a neighbour's pool that cannot be opened.

    The pool's blocks are sent as bytes instead.
    """


class PeerPool(Protocol):
    """An interface to a neighbour's pool that is opened in this process."""

    def copy(self, sources: Slots, targets: Slots) -> CopyEvent:
        """Start to copy the neighbour's blocks.

        Return the event that marks the end. Raises CopyFailed.
        """
        ...


class PeerPools(Protocol):
    """An interface to the opened pools of neighbours. One thread uses it, except for `host_of`."""

    def host_of(self, where: str) -> bytes | None:
        """Return this host's id if the engine may share its pool, else None."""
        ...

    def open(self, where: str, handle: PoolHandle) -> PeerPool:
        """Open the pool of the engine at `where`.

        Raises CannotOpen, after which `host_of` returns None.
        """
        ...

    def follow(self, event: CopyEvent) -> None:
        """Make later copies wait for `event`."""
        ...


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


def this_host() -> bytes:
    """Return an id shared by all processes of a host until it reboots."""
    return _BOOT_ID.read_bytes().strip()


def share(blocks: Tensor) -> PoolHandle | None:
    """Return the IPC handle of a pool, or None without IPC.

    `blocks` (num_blocks, block_bytes) uint8 is the pool.
    """
    if blocks.device.type != "cuda":
        return None
    driver, handle = ctypes.CDLL(_DRIVER), _Handle()
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    pointer = ctypes.c_uint64(blocks.data_ptr())
    if driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), pointer):
        return None
    if driver.cuIpcGetMemHandle(ctypes.byref(handle), base):
        return None
    return PoolHandle(bytes(handle), blocks.data_ptr() - base.value, len(blocks))


class CudaPeerPools:
    """The opened pools of other GPUs of this host, for copies of blocks into this engine's pool."""

    def __init__(self, blocks: Tensor) -> None:
        """Open neighbours' pools, whose blocks are copied to `blocks`.

        `blocks` (num_blocks, block_bytes) uint8 is this engine's pool.
        """
        self._blocks = blocks
        self._host = this_host()
        self._closed: set[str] = set()  # addresses of engines whose pools failed to open
        self._opened: dict[str, _CudaPeerPool] = {}
        self._stream = torch.cuda.Stream(blocks.device)  # type: ignore[no-untyped-call]

    def host_of(self, where: str) -> bytes | None:
        """Return this host's id if the pool at `where` is on this host and can be opened."""
        return None if is_tcp(where) or where in self._closed else self._host

    def follow(self, event: CopyEvent) -> None:
        """Make the stream wait for `event`."""
        if isinstance(event, torch.cuda.Event):
            self._stream.wait_event(event)

    def open(self, where: str, handle: PoolHandle) -> PeerPool:
        """Open a pool once, and keep it open.

        A new handle at an address means that another engine runs there. The old pool is then
        closed, because its memory is freed only when no process maps it any more.
        """
        before = self._opened.get(where)
        if before is not None:
            if before.handle == handle:
                return before
            before.close()
            del self._opened[where]
        try:
            pool = self._opened[where] = _CudaPeerPool(handle, self._blocks, self._stream)
        except CannotOpen:
            self._closed.add(where)
            raise
        return pool


def pieces_of(
    sources: Slots, targets: Slots, their_base: int, our_base: int, size: int
) -> CopyPieces:
    """Plan copies of blocks of `size` bytes. Copies that are adjacent on both sides are merged."""
    follows = (np.diff(sources) == 1) & (np.diff(targets) == 1)
    firsts = np.flatnonzero(np.concatenate(([True], ~follows))[: len(sources)])
    counts = np.diff(np.append(firsts, len(sources)))
    return CopyPieces(
        (our_base + targets[firsts] * size).astype(np.uint64),
        (their_base + sources[firsts] * size).astype(np.uint64),
        (counts * size).astype(np.uint64),
    )


class _CudaPeerPool:
    def __init__(self, handle: PoolHandle, ours: Tensor, stream: torch.cuda.Stream) -> None:
        torch.cuda.set_device(ours.device)
        torch.cuda.current_stream(ours.device).synchronize()  # also creates the CUDA context
        self._driver = ctypes.CDLL(_DRIVER)
        self._ours, self._stream, self._num_blocks = ours, stream, handle.num_blocks
        self._batched = open_batched_copies()
        if len(handle.handle) != HANDLE_BYTES:
            raise CannotOpen("the handle is none")
        base = ctypes.c_uint64()
        opened = _Handle.from_buffer_copy(handle.handle)
        code = self._driver.cuIpcOpenMemHandle_v2(ctypes.byref(base), opened, _LAZY_PEER_ACCESS)
        if code:
            raise CannotOpen(f"CUDA refused the pool with error {code}")
        self._mapped, self._base = base, base.value + handle.offset
        self.handle, self._is_open = handle, True

    def close(self) -> None:
        self._is_open = False
        self._stream.synchronize()
        self._driver.cuIpcCloseMemHandle(self._mapped)

    def copy(self, sources: Slots, targets: Slots) -> CopyEvent:
        if not self._is_open:
            raise CopyFailed("the neighbour has ended")
        if len(sources) and not 0 <= sources.min() <= sources.max() < self._num_blocks:
            raise CopyFailed("a slot is outside of the neighbour's pool")
        pieces = pieces_of(sources, targets, self._base, self._ours.data_ptr(), self._ours.shape[1])
        try:
            if self._batched is None:
                self._one_by_one(pieces)
            else:
                self._batched.queue(pieces, self._stream.cuda_stream)
        except CopyFailed:
            self._stream.synchronize()  # some copies may have started
            raise
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def _one_by_one(self, pieces: CopyPieces) -> None:
        stream = ctypes.c_void_p(self._stream.cuda_stream)
        for target, source, size in zip(
            pieces.targets.tolist(), pieces.sources.tolist(), pieces.sizes.tolist(), strict=True
        ):
            code = self._driver.cuMemcpyAsync(
                ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(size), stream
            )
            if code:
                raise CopyFailed(f"CUDA refused a copy from a neighbour with error {code}")
