"""Records in a file of this process, for tests without a disk process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from storage.disk.file.data_keys import DataKeys, DirectoryKey, KeyRing
from storage.disk.file.head_room import DiskUse, HeadRoom, disk_use
from storage.disk.file.lmdb_file import LmdbFile
from storage.disk.file.records import DiskRecords, ScanRoom, ToWrite
from storage.disk.file.seal import RecordSeal
from storage.disk.wire import Segment
from storage.move import BlockRecord
from tests.storage.scene import BLOCK_BYTES, FINGERPRINT, content, record

RECORD_BYTES = BLOCK_BYTES + 4096


class Bench:
    """A file in `directory` and its records; `wrap` may replace the file by a double."""

    def __init__(
        self,
        directory: Path,
        *,
        encrypt: bool = False,
        max_bytes: int = 64 << 20,
        num_slots: int = 100_000,
        high_water: float = 0.85,
        disk_use: Callable[[Path], DiskUse] = disk_use,
    ) -> None:
        self.directory = directory
        self.keys: KeyRing = (
            DataKeys(directory / "keys") if encrypt else DirectoryKey.load(directory / "secret")
        )
        self.seal = RecordSeal(self.keys, FINGERPRINT, BLOCK_BYTES)
        head_room = HeadRoom(directory, max_bytes, high_water, disk_use)
        self.room = ScanRoom(head_room, num_slots, BLOCK_BYTES, RECORD_BYTES)
        self.file = LmdbFile(directory / "blocks", max_bytes)
        self.records = self.over(self.file)

    @property
    def data(self) -> Path:
        """Return the file."""
        return self.directory / "blocks" / "data.mdb"

    def over(self, file: LmdbFile) -> DiskRecords:
        """Return records over `file`."""
        return DiskRecords(file, self.seal, self.room)

    def write(self, slot: int, number: int, owner: str = "flow") -> None:
        """Write block `number` to `slot`."""
        self.records.write([to_write(slot, number, owner)])

    def write_all(self, count: int, at_once: int = 100) -> None:
        """Write block i to slot i for each i < count."""
        for start in range(0, count, at_once):
            end = min(start + at_once, count)
            self.records.write([to_write(i, i) for i in range(start, end)])

    def reads_right(self, slot: int, number: int, owner: str = "flow") -> bool:
        """Return whether the slot holds block `number`; another block fails the test."""
        return reads_right(self.records, slot, record(number, owner), number)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def reads_right(records: DiskRecords, slot: int, asked: BlockRecord, number: int) -> bool:
    """Return whether `asked` can be read from `slot`; fail if its contents differ from
    `content(number)`.
    """
    into = memoryview(bytearray(BLOCK_BYTES))
    scratch = memoryview(bytearray(BLOCK_BYTES))
    if not records.read(slot, asked, into, scratch):
        return False
    assert bytes(into) == content(number).numpy().tobytes(), "a wrong byte"
    return True


def to_write(slot: int, number: int, owner: str = "flow") -> ToWrite:
    """Return a request to write block `number` to `slot`."""
    return ToWrite(slot, record(number, owner), memoryview(content(number).numpy().data))


def numbered_block(segment: Segment, place: int) -> memoryview:
    """Return a memory whose block at place n is block n."""
    return memoryview(content(place).numpy().data)
