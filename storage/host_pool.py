"""The host tier's bytes: one arena of blocks in memory, pinned where there is a GPU.

A block is one contiguous run here as it is on the device, so that a copy between the two is one
plain copy. The arena is registered with CUDA instead of being taken from its allocator, which
rounds up to a power of two; and it is shared memory, so that the disk's process writes a block
to its file from where it lies.

Knows: bytes and slots. Does not know: which slot is free or what lies in it.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from storage.errors import PoolDoesNotFit
from storage.shared_memory import SharedMemory

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for all contexts


class HostPool:
    """(num_blocks, block_bytes) uint8, allocated once, all pages present.

    Concurrency: allocated by any thread, used and dropped by the one owner thread; copies on the
    device's streams read and write it, so a slot is used again only when its copy has been seen
    to be done.
    """

    def __init__(
        self,
        num_blocks: int,
        block_bytes: int,
        device: torch.device,
        available: int | None = None,
    ) -> None:
        """Raise PoolDoesNotFit where `num_blocks` is under 1 or the memory is not there.

        Pinned for copies to and from `device` where that is a GPU. `available` is as in
        SharedMemory.
        """
        started = time.perf_counter()
        self.num_blocks = num_blocks
        self.block_bytes = block_bytes
        self.memory = SharedMemory(num_blocks, block_bytes, available)
        flat = torch.frombuffer(self.memory.map, dtype=torch.uint8)
        self.tensor: Tensor = flat.view(num_blocks, block_bytes)
        self.is_pinned = False
        if device.type == "cuda":
            self.pin()
        self.seconds = time.perf_counter() - started  # what allocating and pinning took

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return self.memory.nbytes

    def pin(self) -> None:
        """Pin the memory for all GPUs, from any thread; PoolDoesNotFit gives it back.

        May run beside whatever else asks something of CUDA, a recording of this thread excepted.
        """
        result = _runtime().cudaHostRegister(self.tensor.data_ptr(), self.nbytes, _PORTABLE)
        if int(result) != 0:
            self.close()
            raise PoolDoesNotFit(f"{self.memory.nbytes} bytes cannot be pinned: {result}")
        self.is_pinned = True

    def close(self) -> None:
        """Give the memory back; the tensor is not to be used any more."""
        if self.is_pinned:
            self.is_pinned = False
            _runtime().cudaHostUnregister(self.tensor.data_ptr())
        self.tensor = torch.empty(0, self.block_bytes, dtype=torch.uint8)
        self.memory.close()


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
