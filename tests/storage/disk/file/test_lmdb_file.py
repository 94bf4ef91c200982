"""Damage that LMDB does not notice is found, and the file's size limit is kept."""

from __future__ import annotations

import random
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import pytest

from storage.disk.file.lmdb_file import LmdbFile, allocated_bytes
from storage.errors import FileDamaged, FileFull

PAGE = 4096
RECORDS = 100
_BRANCH = 0x01


def _headers(directory: Path) -> list[int]:
    """Yield the headers of all slots in pieces, as a scan reads them."""
    file = LmdbFile(directory, 4 << 20)
    try:
        slots: list[int] = []
        first = 0
        while found := file.headers(first, 1000):
            slots += [slot for slot, _ in found]
            first = slots[-1] + 1
            assert len(slots) <= RECORDS, "more than there are"
        return slots
    finally:
        file.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Make a file whose headers take several pages."""
    file = LmdbFile(tmp_path, 4 << 20)
    with file.changing() as changes:
        for slot in range(RECORDS):
            changes.put(slot, bytes(200), b"payload")
    file.close()
    assert _headers(tmp_path) == list(range(RECORDS))
    return tmp_path


def test_a_key_that_is_no_slot_is_damage(directory: Path) -> None:
    environment = lmdb.open(str(directory), max_dbs=4)
    with environment.begin(db=environment.open_db(b"headers"), write=True) as transaction:
        transaction.put(b"odd", b"no slot")
    environment.close()
    with pytest.raises(FileDamaged, match="key 6f6464"):
        _headers(directory)


def test_pages_that_lead_back_are_damage_and_not_read_forever(directory: Path) -> None:
    data = directory / "data.mdb"
    content = bytearray(data.read_bytes())
    branches = [at for at in range(0, len(content), PAGE) if content[at + 10] & _BRANCH]
    assert branches
    for page in branches:
        # offsets of the page's nodes
        first, _, third = struct.unpack_from("3H", content, page + 16)
        assert content[page + first : page + first + 6] != content[page + third : page + third + 6]
        content[page + third : page + third + 6] = content[page + first : page + first + 6]
    data.write_bytes(content)
    with pytest.raises(FileDamaged, match=r"is not that of slot \d+ or a later one"):
        _headers(directory)


def test_a_bound_is_kept_whatever_is_free_and_can_be_raised_again(tmp_path: Path) -> None:
    file = LmdbFile(tmp_path, 1 << 20)
    payload = bytes(100_000)

    def put(slot: int) -> None:
        with file.changing() as changes:
            changes.put(slot, b"header", payload)

    put(0)
    size = file.allocated
    for bound in (300_000, 0):  # the limit may not be smaller than the used size
        file.set_bound(bound)
        assert file.use().bound >= size
    with pytest.raises(FileFull, match="MDB_MAP_FULL"):
        put(1)
    assert file.allocated == size
    file.set_bound(1 << 20)
    put(1)
    assert file.num_records() == 2
    assert 2 * len(payload) < file.allocated == allocated_bytes(tmp_path)
    file.close()


def test_reads_go_on_while_the_bound_changes(tmp_path: Path) -> None:
    """Read while the limit changes.

    Each change maps the file anew. A signal would kill a reader whose map is gone.
    """
    file = LmdbFile(tmp_path, 4 << 20)
    contents = [bytes([slot]) * 20_000 for slot in range(20)]
    with file.changing() as changes:
        for slot, payload in enumerate(contents):
            changes.put(slot, b"header", payload)
    over = threading.Event()

    def read(seed: int) -> int:
        rng, count = random.Random(seed), 0
        while not over.is_set() or not count:
            slot = rng.randrange(20)
            with file.reading(slot) as kept:
                assert kept is not None
                assert kept.payload is not None
                assert bytes(kept.payload) == contents[slot]
            assert len(file.headers(0, 1 << 20)) == 20
            count += 1
        return count

    with ThreadPoolExecutor(3) as threads:
        readers = [threads.submit(read, seed) for seed in range(3)]
        for number in range(200):
            file.set_bound((2 << 20) + 4096 * number)
            with file.changing() as changes:
                changes.put(number % 20, b"header", contents[number % 20])
        over.set()
        assert all(reader.result(30.0) for reader in readers)
    file.close()
