"""Damage that LMDB does not notice, and that would be a scan without end."""

from __future__ import annotations

import struct
from pathlib import Path

import lmdb
import pytest

from storage.disk.lmdb_file import LmdbFile
from storage.errors import FileDamaged

PAGE = 4096
RECORDS = 100
_BRANCH = 0x01


def _headers(directory: Path) -> list[int]:
    """All slots, in pieces, as a scan asks for them."""
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
    """A file whose headers take several pages."""
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
        first, _, third = struct.unpack_from("3H", content, page + 16)  # where its nodes lie
        assert content[page + first : page + first + 6] != content[page + third : page + third + 6]
        content[page + third : page + third + 6] = content[page + first : page + first + 6]
    data.write_bytes(content)
    with pytest.raises(FileDamaged, match=r"is not that of slot \d+ or a later one"):
        _headers(directory)
