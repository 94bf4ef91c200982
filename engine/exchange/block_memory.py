"""The device's KV blocks and recurrent states as bytes, for threads that transfer them.

On a CPU, blocks are read and written in place. On a GPU, blocks go through a pinned buffer, on the
thread's own stream. A recurrent state, or the ring buffer of an attention window, is divided into
units of a block's size. The numbers of the units' slots follow those of the pool's blocks.

Blocks that are read are leased and fully computed, so no kernel writes them any more. Blocks that
are written are private to one lease. The writer waits for all work that was launched before the
lease got the blocks.
"""

from __future__ import annotations

from typing import Protocol

import torch

from storage.copies import CopyEvent, Passed
from storage.pools.device_pool import DevicePool
from storage.pools.host_pool import HostPool
from storage.pools.state_pool import StatePool
from storage.pools.window_pool import WindowPool
from storage.tier_mover import block_bytes_of

States = StatePool | WindowPool


class BlockReader(Protocol):
    """An interface to a reader of blocks. Used by one thread only."""

    def read(self, slot: int) -> memoryview:
        """Read the bytes of a block, which are valid until the next call."""
        ...


class BlockWriter(Protocol):
    """An interface to a writer of blocks, one after another. Used by one thread only."""

    def follow(self, event: CopyEvent) -> None:
        """Make later writes wait for `event`."""
        ...

    def buffer(self, slot: int) -> memoryview:
        """Return the buffer for the bytes of a block."""
        ...

    def flush(self) -> None:
        """Wait until the buffer's bytes are in the block."""
        ...


class SlotRows:
    """The bytes of each slot, uint8 (block_bytes,). KV blocks come first, then units of states."""

    def __init__(self, pool: DevicePool, states: States | None) -> None:
        self.blocks = block_bytes_of(pool)
        self._states = None if states is None else states.blocks
        self.state_units = 0 if states is None else states.slot_blocks

    def __getitem__(self, slot: int) -> torch.Tensor:
        """Return a view of one slot's bytes."""
        after = slot - len(self.blocks)
        if after < 0 or self._states is None:
            return self.blocks[slot]
        return self._states[after]

    def of_state(self, state_slot: int) -> range:
        """Return the slots of the units that make up a recurrent state."""
        first = len(self.blocks) + state_slot * self.state_units
        return range(first, first + self.state_units)


class BlockMemory(Protocol):
    """An interface to the slots of KV blocks and recurrent states.

    Threads make their own readers and writers.
    """

    @property
    def block_bytes(self) -> int:
        """The bytes of one block."""
        ...

    def units_of_state(self, state_slot: int) -> range:
        """Return the slots of a recurrent state's units, if the model has such states."""
        ...

    def record_event(self) -> CopyEvent:
        """Record an event after all launched work. Only the owner thread calls this."""
        ...

    def reader(self) -> BlockReader:
        """Make a reader for one thread."""
        ...

    def writer(self) -> BlockWriter:
        """Make a writer for one thread."""
        ...


class HostMemory:
    """The pools in the host's memory."""

    def __init__(self, pool: DevicePool, states: States | None = None) -> None:
        self.rows = SlotRows(pool, states)
        self.block_bytes = pool.block_bytes

    def units_of_state(self, state_slot: int) -> range:
        """Return the slots of the units that make up a recurrent state."""
        return self.rows.of_state(state_slot)

    def record_event(self) -> CopyEvent:
        """Return an event that has passed, because host memory has no work under way."""
        return Passed()

    def reader(self) -> HostMemory:
        """Return the memory itself."""
        return self

    def writer(self) -> HostMemory:
        """Return the memory itself."""
        return self

    def read(self, slot: int) -> memoryview:
        """Return the block's own memory."""
        return self.buffer(slot).toreadonly()

    def follow(self, event: CopyEvent) -> None:
        """Return immediately, because host memory has no work under way."""

    def buffer(self, slot: int) -> memoryview:
        """Return the block's own memory."""
        return memoryview(self.rows[slot].numpy().data)

    def flush(self) -> None:
        """Do nothing, because the bytes are in the block."""


class CudaMemory:
    """The pools on a GPU."""

    def __init__(self, pool: DevicePool, states: States | None = None) -> None:
        self.rows = SlotRows(pool, states)
        self.blocks = self.rows.blocks
        self.block_bytes = pool.block_bytes

    def units_of_state(self, state_slot: int) -> range:
        """Return the slots of the units that make up a recurrent state."""
        return self.rows.of_state(state_slot)

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
        # By default a new thread uses GPU 0, and would take memory there although the rank's GPU is
        # another.
        torch.cuda.set_device(self.blocks.device)
        return CudaBuffer(self.rows)


class CudaBuffer:
    """A pinned host buffer between a GPU and one thread. Raises PoolDoesNotFit."""

    def __init__(self, rows: SlotRows) -> None:
        """Copy from and to the slots `rows`."""
        self._rows, blocks = rows, rows.blocks
        self._pinned = HostPool(1, blocks.shape[1], blocks.device)
        self._stream = torch.cuda.Stream(blocks.device)  # type: ignore[no-untyped-call]
        self._slot = 0

    def read(self, slot: int) -> memoryview:
        """Copy a block to the buffer and wait for the copy."""
        with torch.cuda.stream(self._stream):
            self._pinned.tensor[0].copy_(self._rows[slot], non_blocking=True)
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
        """Copy the buffer to its block and wait for the copy."""
        with torch.cuda.stream(self._stream):
            self._rows[self._slot].copy_(self._pinned.tensor[0], non_blocking=True)
        self._stream.synchronize()


def memory_of(pool: DevicePool, states: States | None = None) -> HostMemory | CudaMemory:
    """Make the memory of the pool and of the recurrent `states`, on the CPU or on a GPU."""
    kind = CudaMemory if pool.tensor.device.type == "cuda" else HostMemory
    return kind(pool, states)
