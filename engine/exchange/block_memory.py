"""The device pool's blocks as bytes, for the threads that send and receive them.

    cpu     blocks are read and written where they lie
    cuda    through a pinned buffer, on a stream of the thread's own

Who reads holds a lease on the blocks; they were put in the tree when their step was settled, so no
kernel writes them any more. Who writes has blocks that are private to a lease, and begins after an
event: all that was launched before they were given to it.

Knows: tensors, streams. Does not know: what is in a block, or whose it is.
"""

from __future__ import annotations

from typing import Protocol

import torch

from storage.copies import CopyEvent, Passed
from storage.device_pool import DevicePool
from storage.host_pool import HostPool
from storage.tier_mover import block_bytes_of


class BlockReader(Protocol):
    """Reader of blocks. For one thread."""

    def read(self, slot: int) -> memoryview:
        """Read the bytes of a block, valid until the next call."""
        ...


class BlockWriter(Protocol):
    """Writer of blocks, one after the other. For one thread."""

    def follow(self, event: CopyEvent) -> None:
        """Make later writes wait for `event`."""
        ...

    def buffer(self, slot: int) -> memoryview:
        """Return the buffer for the bytes of a block."""
        ...

    def flush(self) -> None:
        """Wait until the buffer's bytes are in the block."""
        ...


class BlockMemory(Protocol):
    """A pool of blocks. Each thread makes its own `reader` and `writer`."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        ...

    def record_event(self) -> CopyEvent:
        """Record an event after all work launched so far; for the owner thread."""
        ...

    def reader(self) -> BlockReader:
        """Make a reader for one thread."""
        ...

    def writer(self) -> BlockWriter:
        """Make a writer for one thread."""
        ...


class HostMemory:
    """A pool in the host's memory."""

    def __init__(self, pool: DevicePool) -> None:
        self._blocks = block_bytes_of(pool).numpy()
        self.block_bytes = pool.block_bytes

    def record_event(self) -> CopyEvent:
        """Return an event that has passed: host memory has no work under way."""
        return Passed()

    def reader(self) -> HostMemory:
        """Return the memory itself."""
        return self

    def writer(self) -> HostMemory:
        """Return the memory itself."""
        return self

    def read(self, slot: int) -> memoryview:
        """Return the block's own memory."""
        return memoryview(self._blocks[slot]).toreadonly()

    def follow(self, event: CopyEvent) -> None:
        """Return at once: host memory has no work under way."""

    def buffer(self, slot: int) -> memoryview:
        """Return the block's own memory."""
        return memoryview(self._blocks[slot])

    def flush(self) -> None:
        """Do nothing: the bytes are in the block."""


class CudaMemory:
    """A pool on a GPU."""

    def __init__(self, pool: DevicePool) -> None:
        self.blocks = block_bytes_of(pool)
        self.block_bytes = pool.block_bytes

    def record_event(self) -> CopyEvent:
        """Record an event after all work launched on the current stream."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.blocks.device))
        return event

    def reader(self) -> CudaBuffer:
        """Make a pinned buffer with a stream."""
        return self._buffer()

    def writer(self) -> CudaBuffer:
        """Make a pinned buffer with a stream."""
        return self._buffer()

    def _buffer(self) -> CudaBuffer:
        # A new thread uses GPU 0, where a rank of another GPU would then take memory.
        torch.cuda.set_device(self.blocks.device)
        return CudaBuffer(self.blocks)


class CudaBuffer:
    """A pinned buffer between a GPU and one thread. Raises PoolDoesNotFit."""

    def __init__(self, blocks: torch.Tensor) -> None:
        """Copy from and to `blocks` (num_blocks, block_bytes) uint8."""
        self._blocks = blocks
        self._pinned = HostPool(1, blocks.shape[1], blocks.device)
        self._stream = torch.cuda.Stream(blocks.device)  # type: ignore[no-untyped-call]
        self._slot = 0  # slot whose bytes are in the buffer

    def read(self, slot: int) -> memoryview:
        """Copy a block to the buffer, and wait for it."""
        with torch.cuda.stream(self._stream):
            self._pinned.tensor[0].copy_(self._blocks[slot], non_blocking=True)
        self._stream.synchronize()
        return self.buffer(slot).toreadonly()

    def follow(self, event: CopyEvent) -> None:
        """Make the stream wait for `event`."""
        if isinstance(event, torch.cuda.Event):
            self._stream.wait_event(event)

    def buffer(self, slot: int) -> memoryview:
        """Return the buffer."""
        self._slot = slot
        return memoryview(self._pinned.tensor[0].numpy().data)

    def flush(self) -> None:
        """Copy the buffer to its block, and wait for it."""
        with torch.cuda.stream(self._stream):
            self._blocks[self._slot].copy_(self._pinned.tensor[0], non_blocking=True)
        self._stream.synchronize()


def memory_of(pool: DevicePool) -> HostMemory | CudaMemory:
    """Make the pool's memory for the host or for a GPU, where the pool is."""
    return CudaMemory(pool) if pool.tensor.device.type == "cuda" else HostMemory(pool)
