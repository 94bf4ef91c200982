"""The LMDB file: two tables by slot, headers and payloads.

Headers have their own table, so that all headers can be read without the blocks. With
`writemap=False` and `metasync=False`, a crash loses at most the last transaction, and a full disk
is an error instead of a signal. A damaged file can still end this process by a signal, so the
engine's process never opens the file. Read transactions are short, because LMDB cannot reuse pages
while one is open.

A block needs one run of free pages. So the number of free bytes does not tell whether the next
block makes the file grow. LMDB never grows a file beyond its map, and `set_bound` changes the map.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import lmdb

from storage.disk.file.read_write_lock import ReadWriteLock
from storage.errors import DiskFull, FileDamaged, FileFull

_KEY = struct.Struct(">I")
_ORIGIN = b"origin"
DATA_NAME = "data.mdb"
_LOCK_NAME = "lock.mdb"
_LOCK_BYTES = 8192
LEAST_BOUND = 64 << 10  # minimum size of a file: LMDB's own pages and the records' origin
_TOUCHING = 16  # number of threads that read pages into memory at the start
_SLOTS_A_PAGE = 4  # minimum number of headers on a page, when pages are half empty


class StoredRecord(NamedTuple):
    """A record in a slot, as views that are valid until the transaction ends."""

    header: memoryview
    payload: memoryview | None


class FileUse(NamedTuple):
    """The use of the file in bytes. Freed pages stay in the file and are used again."""

    used: int
    bound: int


def allocated_bytes(directory: Path) -> int:
    """Return the disk bytes allocated to the file in `directory`, or 0. Raises OSError."""
    try:
        return (directory / DATA_NAME).stat().st_blocks * 512
    except FileNotFoundError:
        return 0


class Changes:
    """The puts and deletes of a transaction."""

    def __init__(
        self, transaction: lmdb.Transaction, headers: lmdb._Database, payloads: lmdb._Database
    ) -> None:
        self._transaction = transaction
        self._headers = headers
        self._payloads = payloads

    def put(self, slot: int, header: bytes, payload: bytes | bytearray | memoryview) -> None:
        """Replace the content of `slot`. Raises FileFull, FileDamaged."""
        with _translated():
            key = _KEY.pack(slot)
            self._transaction.put(key, header, db=self._headers)
            self._transaction.put(key, payload, db=self._payloads)

    def delete(self, slot: int) -> None:
        """Empty `slot`. Raises FileDamaged, and FileFull since a delete needs free pages."""
        with _translated():
            key = _KEY.pack(slot)
            self._transaction.delete(key, db=self._headers)
            self._transaction.delete(key, db=self._payloads)


class LmdbFile:
    """A file of bytes by slot. One thread writes, and any number of threads read meanwhile."""

    def __init__(self, directory: Path, bound: int) -> None:
        """Open or create the file in `directory`. It may grow to `bound` bytes.

        Raises FileDamaged, FileFull, OSError.
        """
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory = directory
        self._bound = max(bound, LEAST_BOUND)
        self._mapped = ReadWriteLock()  # write-locked while the memory map is replaced
        self._check_file()
        self._allocate_lock()
        self._open(readahead=False)
        self._bring_into_memory()
        self._env.close()
        self._open(readahead=True)

    @property
    def allocated(self) -> int:
        """The disk bytes allocated to the file. Raises OSError."""
        return allocated_bytes(self._directory)

    def set_bound(self, bound: int) -> None:
        """Bound the file's size, but never below its present size.

        Called by the writing thread. Raises FileDamaged.
        """
        bound = max(bound, LEAST_BOUND)
        if bound == self._bound:
            return
        with self._mapped.alone():  # a concurrent reader would read unmapped memory
            try:
                self._env.set_mapsize(bound)
            except lmdb.Error as error:  # the error may leave the file unmapped
                raise FileDamaged(f"{type(error).__name__}: {error}") from error
        self._bound = bound

    def origin(self) -> bytes | None:
        """Return the digest that `note_origin` stored, or None in a new file."""
        with self._while_mapped(), self._env.begin() as transaction:
            value = transaction.get(_ORIGIN)
            return None if value is None else bytes(value)

    def note_origin(self, origin: bytes) -> None:
        """Store a digest of everything on which all records in this file depend."""
        with _translated(), self._env.begin(write=True) as transaction:
            transaction.put(_ORIGIN, origin)

    @contextmanager
    def reading(self, slot: int) -> Iterator[StoredRecord | None]:
        """Read `slot` within a short transaction. Raises FileDamaged."""
        key = _KEY.pack(slot)
        with self._while_mapped(), self._env.begin(buffers=True) as transaction:
            header = transaction.get(key, db=self._headers)
            payload = transaction.get(key, db=self._payloads)
            yield None if header is None else StoredRecord(header, payload)

    def headers(self, first: int, max_bytes: int) -> list[tuple[int, bytes]]:
        """Return slots from `first` on that hold a record, with the records' headers.

        Stops once the headers reach `max_bytes`, but returns at least one slot if there is any.
        Raises FileDamaged.
        """
        found: list[tuple[int, bytes]] = []
        size, least = 0, first
        with self._while_mapped(), self._env.begin() as transaction:
            cursor = transaction.cursor(self._headers)
            if cursor.set_range(_KEY.pack(first)):
                for key, header in cursor:
                    # Keys must rise, because in a damaged file a page may lead back to an earlier
                    # page.
                    slot = _slot_of(key, least)
                    least = slot + 1
                    found.append((slot, header))
                    size += len(header)
                    if size >= max_bytes:
                        break
        return found

    @contextmanager
    def changing(self) -> Iterator[Changes]:
        """Make changes that reach the disk as the `with` block ends, unless the block raises."""
        with _translated(), self._env.begin(write=True) as transaction:
            yield Changes(transaction, self._headers, self._payloads)

    def num_records(self) -> int:
        """Return the number of slots that hold a record."""
        with self._while_mapped(), self._env.begin() as transaction:
            return int(transaction.stat(self._headers)["entries"])

    def use(self) -> FileUse:
        """Return the file's use in bytes."""
        with self._while_mapped(), self._env.begin() as transaction:
            tables = [transaction.stat(db) for db in (self._headers, self._payloads)]
            info, page = self._env.info(), self._env.stat()["psize"]
        pages = sum(t["branch_pages"] + t["leaf_pages"] + t["overflow_pages"] for t in tables)
        return FileUse(pages * page, info["map_size"])

    def drop_dead_readers(self) -> None:
        """Free the pages held by readers that died in a transaction."""
        with _translated():
            self._env.reader_check()

    def close(self) -> None:
        """Sync committed data to the disk if possible, and close the file."""
        with _translated():
            self._env.sync(True)
        self._env.close()

    def _open(self, *, readahead: bool) -> None:
        with _translated():
            self._env = lmdb.open(
                str(self._directory), map_size=self._bound, max_dbs=4, mode=0o600,
                writemap=False, metasync=False, max_readers=64, max_spare_txns=8,
                readahead=readahead,
            )  # fmt: skip
        with self._closed_if_damaged():
            self._check_pages()
            self._env.reader_check()
            self._headers = self._env.open_db(b"headers")
            self._payloads = self._env.open_db(b"payloads")

    @contextmanager
    def _while_mapped(self) -> Iterator[None]:
        with self._mapped.shared(), _translated():
            yield

    def _bring_into_memory(self) -> None:
        """Read every page of the tables into memory, but no block's payload.

        These pages are scattered among the blocks. With readahead, the system would also read the
        surrounding blocks, gigabytes in all. Many threads give the disk many requests at once.
        """
        with self._closed_if_damaged(), ThreadPoolExecutor(_TOUCHING) as threads:
            for table in (self._headers, self._payloads):
                step = -(-self._slots_before_end(table) // _TOUCHING)
                parts = [(table, n * step, (n + 1) * step) for n in range(_TOUCHING if step else 0)]
                list(threads.map(lambda part: self._touch(*part), parts))

    def _slots_before_end(self, table: lmdb._Database) -> int:
        with self._env.begin(db=table) as transaction:
            cursor = transaction.cursor()
            return _slot_of(cursor.key(), 0) + 1 if cursor.last() else 0

    def _touch(self, table: lmdb._Database, first: int, end: int) -> None:
        with _translated(), self._env.begin(db=table) as transaction:
            cursor = transaction.cursor()
            while first < end and cursor.set_range(_KEY.pack(first)):
                first = _slot_of(cursor.key(), first) + _SLOTS_A_PAGE

    @contextmanager
    def _closed_if_damaged(self) -> Iterator[None]:
        try:
            with _translated():
                yield
        except FileDamaged:
            self._env.close()
            raise

    def _check_file(self) -> None:
        """Refuse a file without its two meta pages, which may end a process that opens it."""
        path = self._directory / DATA_NAME
        size = path.stat().st_size if path.exists() else 0
        if 0 < size < 2 * os.sysconf("SC_PAGE_SIZE"):
            raise FileDamaged(f"{path} has {size} bytes")

    def _allocate_lock(self) -> None:
        """Allocate LMDB's table of readers. Raises OSError.

        If the disk were full, writing to the mapped table would end this process by a signal.
        """
        mode = os.O_RDWR | os.O_CREAT
        with open(os.open(self._directory / _LOCK_NAME, mode, 0o600), "r+b") as table:
            os.posix_fallocate(table.fileno(), 0, _LOCK_BYTES)

    def _check_pages(self) -> None:
        """Refuse a file without its last page, since reading past the end ends the process."""
        size = (self._directory / DATA_NAME).stat().st_size
        needed = (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]
        if size and needed > size:
            raise FileDamaged(f"{DATA_NAME} has {size} bytes of {needed}")


def _slot_of(key: bytes, least: int) -> int:
    slot: int | None = _KEY.unpack(key)[0] if len(key) == _KEY.size else None
    if slot is None or slot < least:
        raise FileDamaged(f"key {key.hex()} is not that of slot {least} or a later one")
    return slot


@contextmanager
def _translated() -> Iterator[None]:
    """Translate LMDB's errors into FileFull, DiskFull and FileDamaged.

    A plain `lmdb.Error` with an errno is a failed write. All other errors mean damage.
    """
    try:
        yield
    except lmdb.DiskError as error:
        raise DiskFull(str(error)) from error
    except (lmdb.MapFullError, lmdb.TxnFullError) as error:
        raise FileFull(str(error)) from error
    except lmdb.Error as error:
        if type(error) is lmdb.Error:
            raise FileFull(str(error)) from error
        raise FileDamaged(f"{type(error).__name__}: {error}") from error
    except (MemoryError, SystemError) as error:  # caused by damaged size fields
        raise FileDamaged(f"{type(error).__name__}: {error}") from error
