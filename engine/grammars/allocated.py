"""The memory that this process has allocated, as glibc counts it."""

from __future__ import annotations

import ctypes


class _Info(ctypes.Structure):
    """The C struct `mallinfo2` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def allocated_bytes() -> int:
    """Return the bytes in use, in all arenas and mappings, or 0 for glibc older than 2.33."""
    library = ctypes.CDLL(None)
    try:
        library.mallinfo2.restype = _Info
    except AttributeError:
        return 0
    info = library.mallinfo2()
    return int(info.uordblks) + int(info.hblkhd)
