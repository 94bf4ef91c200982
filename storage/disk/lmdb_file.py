"""The one file that knows LMDB: two tables by slot, headers and payloads.

Headers lie apart so that all of them can be read without touching a block. Written with
`writemap=False` and `metasync=False`: a crash loses the last transaction at most, and a full disk
is an error and not a signal. A truncated or damaged file can still end this process by a signal,
which is why it is a process of its own. Readers are short: while one is open, LMDB can reuse no
page, and then not even deleting works in a full file.

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
_TOUCHING = 16  # threads
_SLOTS_A_PAGE = 4  # at least; of headers, when pages are half empty


class Kept(NamedTuple):
    """What lies in a slot; views that are good until the transaction ends."""

    header: memoryview
    payload: memoryview | None


class FileUse(NamedTuple):
    """How full a file is, in bytes; what is freed stays in the file and is used again."""

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
        """Keep these in `slot`, in the place of what is there; FileFull, FileDamaged."""
        with _translated():
            key = _KEY.pack(slot)
            self._transaction.put(key, header, db=self._headers)
            self._transaction.put(key, payload, db=self._payloads)

    def delete(self, slot: int) -> None:
        """Let `slot` hold nothing; FileFull where even this finds no room, FileDamaged."""
        with _translated():
            key = _KEY.pack(slot)
            self._transaction.delete(key, db=self._headers)
            self._transaction.delete(key, db=self._payloads)


class LmdbFile:
    """Bytes by slot. One thread writes; any number read meanwhile."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        """Open the file in `directory`, or make it; FileDamaged."""
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory = directory
        self._max_bytes = max_bytes
        self._check_file()
        self._open(readahead=False)
        self._bring_into_memory()
        self._env.close()
        self._open(readahead=True)

    def origin(self) -> bytes | None:
        """What the records of this file depend on, as it was noted."""
        with _translated(), self._env.begin() as transaction:
            value = transaction.get(_ORIGIN)
            return None if value is None else bytes(value)

    def note_origin(self, origin: bytes) -> None:
        """Note what all records to come depend on."""
        with _translated(), self._env.begin(write=True) as transaction:
            transaction.put(_ORIGIN, origin)

    @contextmanager
    def reading(self, slot: int) -> Iterator[Kept | None]:
        """What lies in `slot`, within one transaction, which is to be short. FileDamaged."""
        key = _KEY.pack(slot)
        with _translated(), self._env.begin(buffers=True) as transaction:
            header = transaction.get(key, db=self._headers)
            payload = transaction.get(key, db=self._payloads)
            yield None if header is None else Kept(header, payload)

    def headers(self, first: int, max_bytes: int) -> list[tuple[int, bytes]]:
        """The next slots from `first` on that hold something, with their headers.

        At least one where there is one, and no more once they come to `max_bytes`. FileDamaged.
        """
        found: list[tuple[int, bytes]] = []
        size, least = 0, first
        with _translated(), self._env.begin(db=self._headers) as transaction:
            cursor = transaction.cursor()
            if cursor.set_range(_KEY.pack(first)):
                for key, header in cursor:
                    least = (
                        _slot_of(key, least) + 1
                    )  # or pages that lead back would be read forever
                    found.append((least - 1, header))
                    size += len(header)
                    if size >= max_bytes:
                        break
        return found

    @contextmanager
    def changing(self) -> Iterator[Changes]:
        """Changes that are on the disk when the block ends; after an error, none is."""
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
        """Free what readers hold that died in a transaction."""
        with _translated():
            self._env.reader_check()

    def close(self) -> None:
        """Close the file; all that was committed is on the disk, but perhaps the last of it."""
        with _translated():
            self._env.sync(True)
        self._env.close()

    def _open(self, *, readahead: bool) -> None:
        """Open the environment and its tables; nothing stays open where that fails."""
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
        """Touch every page of the tables but the blocks themselves.

        These pages lie scattered among the blocks. Without readahead they are a few megabytes;
        with it the system reads blocks around each, gigabytes before the first scan has ended.
        Many threads ask for them, so that a disk may do what it can at once.
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
        """Refuse a file that would be a signal before it is an error: one shorter than its head."""
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
    """The slot that `key` names; FileDamaged where it cannot come behind those before `least`."""
    slot: int | None = _KEY.unpack(key)[0] if len(key) == _KEY.size else None
    if slot is None or slot < least:
        raise FileDamaged(f"key {key.hex()} where slot {least} or a later one was to come")
    return slot


@contextmanager
def _translated() -> Iterator[None]:
    """LMDB's errors as this room's.

    A lack of room has a class of its own in the map, and the base class on the disk (an errno of
    the write that failed). Everything else speaks of a file, or an environment, that is no good.
    """
    try:
        yield
    except (lmdb.MapFullError, lmdb.TxnFullError, lmdb.DiskError) as error:
        raise FileFull(str(error)) from error
    except lmdb.Error as error:
        if type(error) is lmdb.Error:
            raise FileFull(str(error)) from error
        raise FileDamaged(f"{type(error).__name__}: {error}") from error
    except (MemoryError, SystemError) as error:  # a damaged size field has asked for too much
        raise FileDamaged(f"{type(error).__name__}: {error}") from error
