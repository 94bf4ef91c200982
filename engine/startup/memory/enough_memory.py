"""The error for a lack of memory during the start. It says which memory is too small.

Python, NumPy, torch and the system raise different errors if memory is lacking.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.models.errors import NotEnoughMemory
from storage.free_memory import host_free_memory

_log = logging.getLogger(__name__)

# Parts of the messages of memory errors that have no exception type of their own.
_SIGNS = ("can't allocate memory", "Cannot allocate memory", "can't start new thread", "bad_alloc")


@contextmanager
def enough_memory() -> Iterator[None]:
    """Replace errors that mean a lack of memory by NotEnoughMemory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        what = str(error).partition(". ")[0]  # cut off torch's advice on its settings
        raise NotEnoughMemory(f"there is not enough memory on the device: {what}") from error
    except (MemoryError, RuntimeError, OSError) as error:
        if not lacks_memory(error):
            raise
        room = host_free_memory()
        raise NotEnoughMemory(
            f"there is not enough memory: {room.bytes >> 20} MiB are left within {room.bound}"
        ) from error


def lacks_memory(error: BaseException) -> bool:
    """Return whether `error` means that the host has too little memory."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def warn_of_little_room(wanted: int) -> None:
    """Warn if a pool is larger than free memory. A pool uses memory only as it fills."""
    room = host_free_memory()
    if wanted > room.bytes:
        _log.warning(
            "the cache may take %d MiB of host memory; %d MiB are left within %s",
            wanted >> 20,
            room.bytes >> 20,
            room.bound,
        )
