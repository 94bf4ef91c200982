"""The disk tier's settings, and how many blocks they come to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from storage.disk.file.head_room import slots_in

PAGE_BYTES = 4096  # of an LMDB file
HEADER_ROOM = 1024  # bytes of a block in the table of headers, half-empty pages included
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskConfig:
    """Directory of the blocks, and how much of the disk they may take.

    A read that takes longer than `read_deadline_s` has failed. A write that takes longer than
    `write_deadline_s` gets the disk's process killed: until it is dead it may read the block, so
    that the block's memory cannot be reused.
    """

    directory: Path
    max_bytes: int  # of the file; its disk may allow less
    block_bytes: int
    fingerprint: bytes  # 32 bytes; a file of another is wiped
    encrypt: bool = False  # under a data key for every owner
    high_water: float = 0.85  # of the file's bound for blocks; the rest stays free on the disk too
    staging_bytes: int = 128 * MIB  # shared with the disk's process
    read_deadline_s: float = 1.0
    write_deadline_s: float = 30.0
    start_deadline_s: float = 30.0
    lock_wait_s: float = 5.0  # for a process of the engine before, which may still be closing
    restart_after_s: float = 0.5  # doubled with each failure in a row
    max_failures: int = 3  # within failure_window_s; then the tier stays off
    failure_window_s: float = 600.0
    full_retry_s: float = 10.0  # after the process ended because its disk was full

    @property
    def record_bytes(self) -> int:
        """Bytes that one block takes in the file, at most."""
        pages = -(-(self.block_bytes + 64) // PAGE_BYTES)
        return pages * PAGE_BYTES + HEADER_ROOM

    @property
    def num_blocks(self) -> int:
        """Slots of a file of `max_bytes`; the disk may have room for fewer."""
        return slots_in(self.max_bytes, self.record_bytes, self.high_water)

    @property
    def num_buffers(self) -> int:
        """Blocks of staging: the most that are copied to and from the disk at once."""
        return min(max(self.staging_bytes // self.block_bytes, 4), 256)
