"""Records by slot: sealed when they are written, checked against what was asked for when read.

A record that is not exactly the one asked for, in its slot, whole and unchanged, is lost: nothing
of it is handed out, and it is deleted.

Knows: records and slots. Does not know: processes, queues, or how bytes are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from storage.disk.lmdb_file import FileUse, Kept
from storage.disk.room import Room
from storage.disk.seal import Bytes, Header, NotSound, Seal
from storage.move import Record

_SCAN_BYTES = 48 << 10  # of headers, in one piece of a scan


class ChangeableFile(Protocol):
    """Changes that take place together."""

    def put(self, slot: int, header: bytes, payload: Bytes) -> None:
        """Keep these in `slot`."""

    def delete(self, slot: int) -> None:
        """Let `slot` hold nothing."""


class SlotFile(Protocol):
    """Bytes by slot. LmdbFile is one. Raises FileFull and FileDamaged."""

    def reading(self, slot: int) -> AbstractContextManager[Kept | None]:
        """What lies in `slot`."""

    def headers(self, first: int, max_bytes: int) -> list[tuple[int, bytes]]:
        """The next headers."""

    def changing(self) -> AbstractContextManager[ChangeableFile]:
        """Changes, all or none."""

    def use(self) -> FileUse:
        """How full it is."""

    def drop_dead_readers(self) -> None:
        """Free what dead readers hold."""


class ToWrite(NamedTuple):
    """A block to be written."""

    slot: int
    record: Record
    payload: memoryview


class ScanPart(NamedTuple):
    """One piece of a scan: records in order of slot, slots of others, and where to go on."""

    entries: list[tuple[int, Record]]
    unsound: list[int]
    next_slot: int | None


class Records:
    """The records of one file. One thread writes, erases and forgets; others may read and scan."""

    def __init__(self, file: SlotFile, seal: Seal, room: Room) -> None:
        self._file = file
        self._seal = seal
        self._room = room
        self._scratch = bytearray(room.block_bytes)

    def write(self, blocks: Sequence[ToWrite], erased: Iterable[int] = ()) -> None:
        """Erase slots and write all of `blocks`, in one transaction.

        Raises FileFull, FileDamaged, OSError, and then nothing has changed; a record that is left
        in a block's slot does no harm, since a read names the record that it wants.
        """
        if blocks:
            self._room.require(len(blocks), self._file.use())
        with self._file.changing() as changes:
            for slot in erased:
                changes.delete(slot)
            for slot, record, payload in blocks:
                changes.put(slot, *self._seal.seal(slot, record, payload, self._scratch))

    def read(self, slot: int, record: Record, into: memoryview, scratch: memoryview) -> bool:
        """Read a block into `into`; False: it is lost, and the content of `into` is undefined.

        `scratch` is as large as a block, and this thread's own. Raises FileDamaged.
        """
        held = scratch if self._seal.encrypts else into
        try:
            header = self._copy_out(slot, record, held)
            self._seal.open_payload(header, held, into)
        except NotSound:
            return False
        return True

    def scan(self, first: int) -> ScanPart:
        """The next records, from slot `first` on. Raises FileDamaged."""
        found = self._file.headers(first, _SCAN_BYTES)
        entries, unsound = [], []
        for slot, content in found:
            try:
                header = self._seal.open_header(content)
            except NotSound:
                unsound.append(slot)
                continue
            if header.slot == slot < self._room.num_slots:
                entries.append((slot, header.record))
            else:
                unsound.append(slot)
        return ScanPart(entries, unsound, found[-1][0] + 1 if found else None)

    def forget(self, owner: str) -> list[int]:
        """Erase the key of `owner`; returns the slots of its records, to be erased.

        Raises OSError, FileDamaged.
        """
        first: int | None = 0
        slots: list[int] = []
        while first is not None:
            entries, _, first = self.scan(first)
            slots += [slot for slot, record in entries if record.owner == owner]
        self._seal.forget(owner)
        return slots

    def _copy_out(self, slot: int, record: Record, held: memoryview) -> Header:
        """Copy the payload of `slot` to `held`, if its header is that of `record`; else NotSound.

        The transaction ends before the payload is checked: it has to be short.
        """
        with self._file.reading(slot) as kept:
            if kept is None or kept.payload is None or len(kept.payload) != len(held):
                raise NotSound
            header = self._seal.open_header(kept.header)
            if header.slot != slot or not is_same(header.record, record):
                raise NotSound
            # numpy releases the GIL for the copy, which a memoryview does not.
            source = np.frombuffer(kept.payload, dtype=np.uint8)
            np.copyto(np.frombuffer(held, dtype=np.uint8), source)
        return header


def is_same(found: Record, asked: Record) -> bool:
    """Whether two records are equal in everything but their hits."""
    return replace(found, hits=asked.hits) == asked
