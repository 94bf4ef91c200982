"""Memory that this process has freed, and that the C library still keeps for it."""

import ctypes


def return_freed_memory() -> None:
    """Return all freed memory to the system; with another C library than glibc, do nothing.

    Without this call, glibc returns only memory at the end of its heap. Takes up to 50 ms.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
