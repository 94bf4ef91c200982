"""The file of an exported prefix: it opens only unchanged and with its keys, and is read in
chunks.
"""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest
from msgspec.structs import replace

from cli.operating.prefix_file import (
    MAGIC,
    FileHeader,
    PrefixFile,
    PrefixFileRefused,
    SealedWriter,
    new_salt,
    read_key,
)
from gateway.receipts.signing import NotAPublicKey, ReceiptKey

KEY, OTHER = "k" * 32, "o" * 32
SIGNER = ReceiptKey(bytes(32))
TEXT = msgspec.json.encode({"name": "rules", "source": {"text": "Be kind."}})
UNIT = 64
HEADER = FileHeader(
    fingerprint="00" * 16,
    unit_bytes=UNIT,
    blocks=5,
    state_units=2,
    units_a_part=3,
    text_bytes=len(TEXT),
    tokens_digest="11" * 32,
    salt=new_salt(),
)
UNITS = bytes(Random(1).randbytes(7 * UNIT))


def written(path: Path, header: FileHeader = HEADER, units: bytes = UNITS) -> bytes:
    with path.open("wb") as file:
        writer = SealedWriter(file, header, KEY)
        writer.write(TEXT)
        step = header.units_a_part * header.unit_bytes
        for at in range(0, len(units), step):
            writer.write(units[at : at + step])
        file.write(SIGNER.sign_file(writer.digest))
    return path.read_bytes()


def read(path: Path, key: str = KEY, signer: str = SIGNER.public) -> tuple[object, bytes]:
    """Read a whole file as an import does."""
    with path.open("rb") as file:
        opened = PrefixFile.of(file)
        opened.check_signature(signer)
        text = opened.text(key)
        return text, b"".join(units for _, units in opened.parts(key))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rules.prefix"


def test_what_was_written_is_read(path: Path) -> None:
    content = written(path)
    assert read(path) == (msgspec.json.decode(TEXT), UNITS)
    assert b"kind" not in content
    assert UNITS[:16] not in content
    with path.open("rb") as file:
        assert [first for first, _ in PrefixFile.of(file).parts(KEY)] == [0, 3, 6]


def test_a_change_of_any_byte_is_refused(path: Path) -> None:
    content = written(path)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(PrefixFileRefused):
            read(path)
    path.write_bytes(content)
    assert read(path)[1] == UNITS, "the control"


def test_any_other_length_is_refused(path: Path) -> None:
    content = written(path)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(PrefixFileRefused):
            read(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(PrefixFileRefused, match="not whole, or longer"):
        read(path)


def test_parts_of_two_files_cannot_be_exchanged(path: Path) -> None:
    """Refuse a chunk from another file.

    The two chunks have the same key, position and length, but different salts.
    """
    one = written(path)
    other = written(path, replace(HEADER, salt=new_salt()), bytes(len(UNITS)))
    start = len(one) - HEADER.sealed_bytes() - 64
    place = start + len(TEXT) + 16
    size = HEADER.part_bytes(0) + 16
    mixed = one[:place] + other[place : place + size] + one[place + size :]
    path.write_bytes(mixed)
    with path.open("rb") as file:
        opened = PrefixFile.of(file)
        with pytest.raises(PrefixFileRefused, match="changed"):
            opened.check_signature(SIGNER.public)
        with pytest.raises(PrefixFileRefused, match="not sealed"):
            list(opened.parts(KEY))


def test_other_keys_are_refused(path: Path) -> None:
    written(path)
    with pytest.raises(PrefixFileRefused, match="not sealed with this key"):
        read(path, key=OTHER)
    with pytest.raises(PrefixFileRefused, match="not signed with this public key"):
        read(path, signer=ReceiptKey(b"1" * 32).public)
    with pytest.raises(NotAPublicKey, match="32 bytes"):
        read(path, signer="none")


HOSTILE = [
    {"unit_bytes": 0},
    {"unit_bytes": 1 << 40},
    {"blocks": 0},
    {"blocks": -1},
    {"blocks": 1 << 62},
    {"units_a_part": 0},
    {"text_bytes": 1 << 40},
    {"state_units": -5},
    {"more": 1},
    {"blocks": "5"},
]


@pytest.mark.parametrize("fields", HOSTILE, ids=str)
def test_a_header_that_promises_what_is_not_there_is_refused(
    path: Path, fields: dict[str, object]
) -> None:
    header = msgspec.to_builtins(HEADER) | fields
    spelled = msgspec.json.encode(header)
    path.write_bytes(MAGIC + struct.pack("<I", len(spelled)) + spelled + bytes(1000))
    with pytest.raises(PrefixFileRefused):
        read(path)


@pytest.mark.parametrize(
    "spelled",
    [b"", b"{", b"\xff", b"[" * 60_000, b"{}", b'{"a":' * 10_000],
    ids=range(6),
)
def test_what_is_no_header_is_refused(path: Path, spelled: bytes) -> None:
    path.write_bytes(MAGIC + struct.pack("<I", len(spelled)) + spelled + bytes(100))
    with pytest.raises(PrefixFileRefused):
        read(path)
    path.write_bytes(MAGIC + struct.pack("<I", 0xFFFFFFFF) + spelled)
    with pytest.raises(PrefixFileRefused, match="too long"):
        read(path)


def test_a_file_is_read_in_parts(path: Path) -> None:
    """Read a file in chunks.

    Reading a file of 64 MiB needs memory for a few chunks of 1 MiB.
    """
    unit = 1 << 20
    header = replace(HEADER, unit_bytes=unit, blocks=64, state_units=0, units_a_part=1)

    def units() -> Iterator[bytes]:
        return (bytes([number]) * unit for number in range(64))

    with path.open("wb") as file:
        writer = SealedWriter(file, header, KEY)
        writer.write(TEXT)
        for one in units():
            writer.write(one)
        file.write(SIGNER.sign_file(writer.digest))
    tracemalloc.start()
    with path.open("rb") as content:
        opened = PrefixFile.of(content)
        opened.check_signature(SIGNER.public)
        assert all(one == other for (_, one), other in zip(opened.parts(KEY), units(), strict=True))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8 * unit


def test_a_sparse_file_is_refused_by_its_size(path: Path) -> None:
    written(path)
    os.truncate(path, 1 << 40)
    with pytest.raises(PrefixFileRefused, match="not whole, or longer"):
        read(path)


@pytest.mark.parametrize("content", ["", "short", "\u00e9" * 40, " " * 64])
def test_a_key_that_is_too_short_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    with pytest.raises(PrefixFileRefused, match="has no key"):
        read_key(file)
    file.write_text(f"  {KEY}\n")
    assert read_key(file) == KEY, "the control"


def test_a_writer_writes_what_it_digests() -> None:
    file = io.BytesIO()
    writer = SealedWriter(file, HEADER, KEY)
    before = writer.digest
    writer.write(TEXT)
    assert writer.digest != before
    assert file.getvalue().startswith(MAGIC)
