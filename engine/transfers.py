"""The transfers of small arrays between host and device, in one copy and without waiting.

On CUDA, the arrays are written to one pinned buffer. The buffer is copied to the device, and sliced
there. Torch's pinned allocator does not reuse the buffer before the copy has ended. On a CPU
nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

HostArray = npt.NDArray[Any]

ALIGNMENT = 16  # in bytes; a view of any used dtype can begin at a multiple of this


def host_buffer(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate host memory for asynchronous copies to or from `device`.

    On CUDA, the memory is pinned, and torch does not reuse it before its copies have ended.
    """
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def to_device(arrays: Sequence[HostArray], device: torch.device) -> list[Tensor]:
    """Copy the contiguous `arrays` to `device` as tensors of the same shapes and dtypes.

    On the CPU the tensors share memory with the arrays.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    offsets = byte_offsets(arrays)
    staging = host_buffer(offsets[-1:], torch.uint8, device)
    _fill(staging.numpy(), arrays, offsets)
    on_device = staging.to(device, non_blocking=True)
    return [_cut(on_device, offset, array) for offset, array in zip(offsets, arrays, strict=False)]


def byte_offsets(arrays: Sequence[HostArray]) -> list[int]:
    """Return the start of each array in a joined buffer, in bytes, and finally the total size."""
    padded = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays]
    return [0, *np.cumsum(padded, dtype=np.int64).tolist()]


def _fill(staging: npt.NDArray[np.uint8], arrays: Sequence[HostArray], offsets: list[int]) -> None:
    for offset, array in zip(offsets, arrays, strict=False):
        staging[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)


def _cut(on_device: Tensor, offset: int, array: HostArray) -> Tensor:
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    return on_device[offset : offset + array.nbytes].view(dtype).view(array.shape)


class HostCopy:
    """A copy of a device tensor to the host. Later launches may overwrite the tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self._host = host_buffer(tensor.shape, tensor.dtype, tensor.device)
        self._host.copy_(tensor, non_blocking=True)
        self._arrived = record_event(tensor.device)

    def wait(self) -> HostArray:
        """Wait for the copy, and return the tensor's values as an array."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host.numpy()


def record_event(device: torch.device) -> torch.cuda.Event | None:
    """Record an event after all launches on `device`, or return None on a CPU."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
