"""The disk tier's settings, and the number of blocks that follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from storage.disk.file.head_room import slots_in

PAGE_BYTES = 4096
HEADER_ROOM = 1024  # bytes that a block's header takes in the file if pages are half empty
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskConfig:
    """The settings of the disk tier: the directory of the blocks, and their disk space.

    A read that takes longer than `read_deadline_s` fails. After a write of more than
    `write_deadline_s`, the disk's process is killed. The block's memory is used again only once the
    process is dead, since a live process may read it.
    """

    directory: Path
    max_bytes: int  # maximum size of the file; the disk may have less free space
    block_bytes: int
    fingerprint: bytes  # 32 bytes; a file with another fingerprint is wiped
    encrypt: bool = False  # whether records are encrypted, with a key for every owner
    high_water: float = 0.85  # share of `max_bytes` for blocks
    staging_bytes: int = 128 * MIB  # memory shared with the disk's process
    read_deadline_s: float = 1.0
    write_deadline_s: float = 30.0
    start_deadline_s: float = 30.0
    lock_wait_s: float = 5.0  # maximum wait until a previous engine's process has closed the files
    restart_after_s: float = 0.5  # pause before a restart, doubled with each consecutive failure
    max_failures: int = 3  # failures within failure_window_s after which the tier stays off
    failure_window_s: float = 600.0
    full_retry_s: float = 10.0  # pause before a restart after the disk was full

    @property
    def record_bytes(self) -> int:
        """The maximum number of bytes that a block takes in the file."""
        pages = -(-(self.block_bytes + 64) // PAGE_BYTES)
        return pages * PAGE_BYTES + HEADER_ROOM

    @property
    def num_blocks(self) -> int:
        """The number of block slots in a file of `max_bytes`. The disk may have room for fewer."""
        return slots_in(self.max_bytes, self.record_bytes, self.high_water)

    @property
    def num_buffers(self) -> int:
        """The number of staging buffers, which limits the blocks copied to or from disk at once."""
        return min(max(self.staging_bytes // self.block_bytes, 4), 256)
