"""Records by slot: sealed when written, and checked against the request when read.

A record counts as lost unless its slot holds all of it, unchanged, with the requested header. A
lost record is deleted, and none of its bytes are returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from storage.disk.file.head_room import HeadRoom, slots_in
from storage.disk.file.lmdb_file import FileUse, LmdbFile
from storage.disk.file.seal import Header, RecordNotSound, RecordSeal
from storage.errors import DiskFull, FileFull
from storage.move import BlockRecord

_SCAN_BYTES = 48 << 10  # maximum header bytes in one piece of a scan


@dataclass(frozen=True, slots=True)
class ScanRoom:
    """Limits on writes: the number of blocks, the file's size, and the free space of the disk.

    Deleting needs room too, since LMDB copies the pages that it changes. So writes are refused
    before the file is full. A completely full file can only be removed.
    """

    head_room: HeadRoom
    num_slots: int
    block_bytes: int
    record_bytes: int

    def require(self, num_blocks: int, use: FileUse) -> None:
        """Raise FileFull or DiskFull if there is no room for `num_blocks` blocks.

        Raises OSError.
        """
        if not self.head_room.is_kept():
            raise DiskFull(f"too little is left of the disk of {self.head_room.directory}")
        # Slots take high_water of the file. Half of the rest is for overwriting slots, which takes
        # new pages before it frees the old pages. The other half is for erasing records when space
        # is short.
        spare = int(use.bound * (1 - self.head_room.high_water) / 2)
        if use.used + num_blocks * self.record_bytes + spare > use.bound:
            # True if the disk's free space, not the number of slots, limits the file.
            fitting = slots_in(use.bound, self.record_bytes, self.head_room.high_water)
            is_cut_down = use.bound < self.head_room.max_bytes and fitting < self.num_slots
            full = DiskFull if is_cut_down else FileFull
            raise full(f"{use.used} of {use.bound} bytes are in use")


class ToWrite(NamedTuple):
    """A block to be written."""

    slot: int
    record: BlockRecord
    payload: memoryview


class ScanPart(NamedTuple):
    """A part of a scan: valid records, slots of invalid records, and the next slot to scan."""

    entries: list[tuple[int, BlockRecord]]
    unsound: list[int]
    next_slot: int | None


class DiskRecords:
    """The records of one file.

    One thread writes, erases and forgets. Other threads read and scan.
    """

    def __init__(self, file: LmdbFile, seal: RecordSeal, room: ScanRoom) -> None:
        self._file = file
        self._seal = seal
        self._room = room
        self._scratch = bytearray(room.block_bytes)

    def write(
        self, blocks: Sequence[ToWrite], erased: Iterable[int] = (), *, in_need: bool = False
    ) -> None:
        """Erase slots and write all `blocks` in one transaction.

        With `in_need`, erasing may use the disk's head-room. Raises FileFull, FileDamaged or
        OSError, and changes nothing then. An old record in a block's slot does no harm, since a
        read names the record that it wants.
        """
        self._file.set_bound(self._room.head_room.bound(self._file.allocated, in_need=in_need))
        if blocks:
            self._room.require(len(blocks), self._file.use())
        with self._file.changing() as changes:
            for slot in erased:
                changes.delete(slot)
            for slot, record, payload in blocks:
                changes.put(slot, *self._seal.seal(slot, record, payload, self._scratch))

    def read(self, slot: int, record: BlockRecord, into: memoryview, scratch: memoryview) -> bool:
        """Read a block into `into`. Raises FileDamaged.

        Returns False if the block is lost. Then the content of `into` is undefined. `scratch` is as
        large as a block, and no other thread uses it.
        """
        held = scratch if self._seal.encrypts else into
        try:
            header = self._copy_out(slot, record, held)
            self._seal.open_payload(header, held, into)
        except RecordNotSound:
            return False
        return True

    def scan(self, first: int) -> ScanPart:
        """Scan the next records from slot `first` on. Raises FileDamaged."""
        found = self._file.headers(first, _SCAN_BYTES)
        entries, unsound = [], []
        for slot, content in found:
            try:
                header = self._seal.open_header(content)
            except RecordNotSound:
                unsound.append(slot)
                continue
            if header.slot == slot < self._room.num_slots:
                entries.append((slot, header.record))
            else:
                unsound.append(slot)
        return ScanPart(entries, unsound, found[-1][0] + 1 if found else None)

    def forget(self, owner: str) -> list[int]:
        """Erase the key of `owner`, and return the slots of its records.

        Raises OSError, FileDamaged.
        """
        first: int | None = 0
        slots: list[int] = []
        while first is not None:
            entries, _, first = self.scan(first)
            slots += [slot for slot, record in entries if record.owner == owner]
        self._seal.forget(owner)
        return slots

    def _copy_out(self, slot: int, record: BlockRecord, held: memoryview) -> Header:
        """Copy the payload of `slot` to `held` if the slot has the header of `record`.

        Raises RecordNotSound for another header. The transaction must be short, so the payload is
        checked after it.
        """
        with self._file.reading(slot) as kept:
            if kept is None or kept.payload is None or len(kept.payload) != len(held):
                raise RecordNotSound
            header = self._seal.open_header(kept.header)
            # The block's hits may have grown since the block was written.
            if header.slot != slot or replace(header.record, hits=record.hits) != record:
                raise RecordNotSound
            # numpy releases the GIL while it copies, and memoryview does not.
            source = np.frombuffer(kept.payload, dtype=np.uint8)
            np.copyto(np.frombuffer(held, dtype=np.uint8), source)
        return header
