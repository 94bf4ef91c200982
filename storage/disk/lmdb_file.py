"""The one file that knows LMDB: two tables by slot, headers and payloads.

Headers have a table of their own, so that all of them can be read without touching a block. With
`writemap=False` and `metasync=False` a crash loses the last transaction at most, and a full disk is
an error and not a signal. A truncated or damaged file can still end this process by a signal, which
is why it is a process of its own. Read transactions are short: while one is open, LMDB cannot reuse
pages, and then not even deleting works in a full file.

Knows: LMDB, its limits and what its errors mean. Does not know: what is in a header or payload.
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

from storage.errors import FileDamaged, FileFull

_KEY = struct.Struct(">I")
_ORIGIN = b"origin"
DATA_NAME = "data.mdb"
_TOUCHING = 16  # threads that read pages into memory at the start
_SLOTS_A_PAGE = 4  # headers on a page, at least: when pages are half empty


class Kept(NamedTuple):
    """What lies in a slot; views that are valid until the transaction ends."""

    header: memoryview
    payload: memoryview | None


class FileUse(NamedTuple):
    """How full a file is, in bytes; freed pages stay in the file and are used again."""

    used: int
    reusable: int
    bound: int


class Changes:
    """Puts and deletes that take place together, or not at all."""

    def __init__(
        self, transaction: lmdb.Transaction, headers: lmdb._Database, payloads: lmdb._Database
    ) -> None:
        self._transaction = transaction
        self._headers = headers
        self._payloads = payloads

    def put(self, slot: int, header: bytes, payload: bytes | bytearray | memoryview) -> None:
        """Store these in `slot`, replacing what is there. Raises FileFull, FileDamaged."""
        with _translated():
            key = _KEY.pack(slot)
            self._transaction.put(key, header, db=self._headers)
            self._transaction.put(key, payload, db=self._payloads)

    def delete(self, slot: int) -> None:
        """Empty `slot`. Raises FileFull (deleting takes pages too) and FileDamaged."""
        with _translated():
            key = _KEY.pack(slot)
            self._transaction.delete(key, db=self._headers)
            self._transaction.delete(key, db=self._payloads)


class LmdbFile:
    """Bytes by slot. One thread writes; any number read meanwhile."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        """Open the file in `directory`, or make it. Raises FileDamaged."""
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory = directory
        self._max_bytes = max_bytes
        self._check_file()
        self._open(readahead=False)
        self._bring_into_memory()
        self._env.close()
        self._open(readahead=True)

    def origin(self) -> bytes | None:
        """What `note_origin` stored; None in a new file."""
        with _translated(), self._env.begin() as transaction:
            value = transaction.get(_ORIGIN)
            return None if value is None else bytes(value)

    def note_origin(self, origin: bytes) -> None:
        """Store a digest of what all records in this file depend on."""
        with _translated(), self._env.begin(write=True) as transaction:
            transaction.put(_ORIGIN, origin)

    @contextmanager
    def reading(self, slot: int) -> Iterator[Kept | None]:
        """What lies in `slot`, within one transaction: keep it short. Raises FileDamaged."""
        key = _KEY.pack(slot)
        with _translated(), self._env.begin(buffers=True) as transaction:
            header = transaction.get(key, db=self._headers)
            payload = transaction.get(key, db=self._payloads)
            yield None if header is None else Kept(header, payload)

    def headers(self, first: int, max_bytes: int) -> list[tuple[int, bytes]]:
        """The next slots from `first` on that hold something, with their headers.

        At least one where there is one, and no more once their headers reach `max_bytes`. Raises
        FileDamaged.
        """
        found: list[tuple[int, bytes]] = []
        size, least = 0, first
        with _translated(), self._env.begin(db=self._headers) as transaction:
            cursor = transaction.cursor()
            if cursor.set_range(_KEY.pack(first)):
                for key, header in cursor:
                    # Keys must rise: in a damaged file a page may lead back to an earlier one.
                    slot = _slot_of(key, least)
                    least = slot + 1
                    found.append((slot, header))
                    size += len(header)
                    if size >= max_bytes:
                        break
        return found

    @contextmanager
    def changing(self) -> Iterator[Changes]:
        """Changes that are all on disk when the `with` block ends, or, if it raises, none."""
        with _translated(), self._env.begin(write=True) as transaction:
            yield Changes(transaction, self._headers, self._payloads)

    def num_records(self) -> int:
        """How many slots hold something."""
        with _translated(), self._env.begin() as transaction:
            return int(transaction.stat(self._headers)["entries"])

    def use(self) -> FileUse:
        """How full the file is."""
        with _translated(), self._env.begin() as transaction:
            tables = [transaction.stat(db) for db in (self._headers, self._payloads)]
            info, page = self._env.info(), self._env.stat()["psize"]
        pages = sum(t["branch_pages"] + t["leaf_pages"] + t["overflow_pages"] for t in tables)
        ever = info["last_pgno"] + 1
        return FileUse(pages * page, (ever - pages) * page, info["map_size"])

    def drop_dead_readers(self) -> None:
        """Free the pages held by readers that died in a transaction."""
        with _translated():
            self._env.reader_check()

    def close(self) -> None:
        """Close the file, after an attempt to bring all that was committed to the disk."""
        with _translated():
            self._env.sync(True)
        self._env.close()

    def _open(self, *, readahead: bool) -> None:
        """Open the environment and its tables; where that fails, nothing stays open."""
        with _translated():
            self._env = lmdb.open(
                str(self._directory), map_size=self._max_bytes, max_dbs=4, mode=0o600,
                writemap=False, metasync=False, max_readers=64, max_spare_txns=8,
                readahead=readahead,
            )  # fmt: skip
        with self._closed_if_damaged():
            self._check_pages()
            self._env.reader_check()
            self._headers = self._env.open_db(b"headers")
            self._payloads = self._env.open_db(b"payloads")

    def _bring_into_memory(self) -> None:
        """Touch every page of the tables, but not the blocks themselves.

        These pages lie scattered among the blocks. Read without readahead they are a few megabytes;
        with it the system reads the blocks around each, gigabytes before the first scan has ended.
        Many threads touch them, so that the disk has many requests to serve at once.
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
        """Refuse a file shorter than its two meta pages: opening it may end in a signal."""
        path = self._directory / DATA_NAME
        size = path.stat().st_size if path.exists() else 0
        if 0 < size < 2 * os.sysconf("SC_PAGE_SIZE"):
            raise FileDamaged(f"{path} has {size} bytes")

    def _check_pages(self) -> None:
        """Refuse a file that ends before its last page: reading behind the end is a signal."""
        size = (self._directory / DATA_NAME).stat().st_size
        needed = (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]
        if size and needed > size:
            raise FileDamaged(f"{DATA_NAME} has {size} bytes of {needed}")


def _slot_of(key: bytes, least: int) -> int:
    """The slot that `key` names. Raises FileDamaged for no slot's key, or one below `least`."""
    slot: int | None = _KEY.unpack(key)[0] if len(key) == _KEY.size else None
    if slot is None or slot < least:
        raise FileDamaged(f"key {key.hex()} is not that of slot {least} or a later one")
    return slot


@contextmanager
def _translated() -> Iterator[None]:
    """Turn LMDB's errors into FileFull and FileDamaged.

    A full map raises a class of its own; a full disk raises the base class, with the errno of the
    write that failed. All other classes mean that the file, or the environment, is damaged.
    """
    try:
        yield
    except (lmdb.MapFullError, lmdb.TxnFullError, lmdb.DiskError) as error:
        raise FileFull(str(error)) from error
    except lmdb.Error as error:
        if type(error) is lmdb.Error:
            raise FileFull(str(error)) from error
        raise FileDamaged(f"{type(error).__name__}: {error}") from error
    except (MemoryError, SystemError) as error:  # caused by damaged size fields
        raise FileDamaged(f"{type(error).__name__}: {error}") from error
