"""The memory that the engine shares, as the disk's process sees it.

Knows: file descriptors and places of blocks. Does not know: what is in a block.
"""

from __future__ import annotations

import mmap

from storage.disk.wire import Memory, Open, Segment


class Memories:
    """The blocks of the staging buffers, mapped to be written, and of the host tier, read only."""

    def __init__(self, wish: Open) -> None:
        """Map both. Raises OSError."""
        self._block_bytes = wish.block_bytes
        staging = _map(wish.staging, wish.block_bytes, mmap.PROT_READ | mmap.PROT_WRITE)
        self._views = {Segment.STAGING: memoryview(staging)}
        if wish.host is not None:
            host = _map(wish.host, wish.block_bytes, mmap.PROT_READ)
            self._views[Segment.HOST] = memoryview(host)

    def block(self, segment: Segment, place: int) -> memoryview:
        """The block at `place`, a view."""
        start = place * self._block_bytes
        return self._views[segment][start : start + self._block_bytes]


def _map(memory: Memory, block_bytes: int, protection: int) -> mmap.mmap:
    return mmap.mmap(memory.fd, memory.num_blocks * block_bytes, prot=protection)
