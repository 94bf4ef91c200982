"""The disk tier's settings, and how many blocks they come to.

Knows: names, defaults, units, and what a record takes in the file. Does not know: what is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from storage.disk.wire import Memory, Open
from storage.host_pool import HostPool

PAGE_BYTES = 4096  # of an LMDB file
HEADER_ROOM = 1024  # bytes of a block in the table of headers, half-empty pages included
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskConfig:
    """Where the blocks lie and how much of the disk they may take.

    A read that takes longer than `read_deadline_s` has failed. A write that takes longer than
    `write_deadline_s` gets the disk's process killed: until it is dead it may read the block, so
    that the block's memory cannot be reused.
    """

    directory: Path
    max_bytes: int  # of the file; the blocks take at most `high_water` of it
    block_bytes: int
    fingerprint: bytes  # 32 bytes; a file of another is wiped
    encrypt: bool = False  # under a data key for every owner
    high_water: float = 0.85  # of the file's bound; the rest of it stays free on the disk too
    staging_bytes: int = 128 * MIB  # shared with the disk's process
    read_deadline_s: float = 1.0
    write_deadline_s: float = 30.0
    start_deadline_s: float = 30.0
    lock_wait_s: float = 5.0  # for a process of the engine before, which may still be closing
    restart_after_s: float = 0.5  # doubled with each failure in a row
    max_failures: int = 3  # within failure_window_s; then the tier stays off
    failure_window_s: float = 600.0

    @property
    def record_bytes(self) -> int:
        """Bytes that one block takes in the file, at most."""
        pages = -(-(self.block_bytes + 64) // PAGE_BYTES)
        return pages * PAGE_BYTES + HEADER_ROOM

    @property
    def num_blocks(self) -> int:
        """Slots: as many as lie below the high-water mark with room for a write under way."""
        return max(int(self.max_bytes * self.high_water) // self.record_bytes - 2, 0)

    @property
    def num_buffers(self) -> int:
        """Blocks of staging: what may be on its way to and from the disk at once."""
        return min(max(self.staging_bytes // self.block_bytes, 4), 256)

    def wish(self, staging: HostPool, host: HostPool | None, *, keep: bool) -> Open:
        """The process's first message; the file that is there is set aside unless `keep`."""
        return Open(
            directory=str(self.directory),
            max_bytes=self.max_bytes,
            num_slots=self.num_blocks,
            block_bytes=self.block_bytes,
            record_bytes=self.record_bytes,
            fingerprint=self.fingerprint,
            encrypt=self.encrypt,
            high_water=self.high_water,
            lock_wait_s=self.lock_wait_s,
            keep=keep,
            staging=_shared(staging),
            host=None if host is None else _shared(host),
        )


def _shared(pool: HostPool) -> Memory:
    return Memory(pool.memory.descriptor, pool.num_blocks)
