"""Many copies in one call to CUDA's driver (`cuMemcpyBatchAsync`).

One call takes a fraction of the time of one call per copy. Blocks of a few hundred KB are then
copied at the speed of the bus (docs/performance.md, "Moving blocks"). The driver has this call from
CUDA 13.0 on.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage.errors import CopyFailed

Addresses = npt.NDArray[np.uint64]

_DRIVER = "libcuda.so.1"
_IN_STREAM_ORDER = 1  # CUDA's CU_MEMCPY_SRC_ACCESS_ORDER_STREAM


class _Location(ctypes.Structure):
    """CUmemLocation: a hint about where the memory lies, left empty."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes: the attributes that all copies of a call share."""

    _fields_ = (
        ("source_access_order", ctypes.c_int),
        ("source_hint", _Location),
        ("target_hint", _Location),
        ("flags", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True)
class CopyPieces:
    """Copies of `sizes` bytes from source to target addresses, (n,) uint64 each."""

    targets: Addresses
    sources: Addresses
    sizes: Addresses


class BatchedCopies:
    """The CUDA driver's call for batched copies."""

    def __init__(self, call: Callable[..., int]) -> None:
        self._call = call

    def queue(self, pieces: CopyPieces, stream: int) -> None:
        """Queue all copies on a stream other than the default stream. Raises CopyFailed.

        Host memory must be pinned. The copies of a call are made in any order.
        """
        if not len(pieces.sizes):
            return
        same = _Attributes(source_access_order=_IN_STREAM_ORDER)
        first = ctypes.c_size_t(0)
        code = self._call(
            pieces.targets.ctypes.data_as(ctypes.c_void_p),
            pieces.sources.ctypes.data_as(ctypes.c_void_p),
            pieces.sizes.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_size_t(len(pieces.sizes)),
            ctypes.byref(same),
            ctypes.byref(first),
            ctypes.c_size_t(1),
            ctypes.c_void_p(stream),
        )
        if code:
            raise CopyFailed(f"CUDA refused {len(pieces.sizes)} copies with error {code}")


def open_batched_copies(driver: str = _DRIVER) -> BatchedCopies | None:
    """Open the driver's call for batched copies, or return None if the driver lacks it."""
    try:
        return BatchedCopies(ctypes.CDLL(driver).cuMemcpyBatchAsync_v2)
    except (OSError, AttributeError):
        return None
