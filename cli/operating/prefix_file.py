"""The file of an exported prefix, encrypted with the operator's key and signed by the installation.

    magic | length | header, JSON in the clear | text | units, units, ... | signature
                                                 `-- each sealed with AES-256-GCM: ciphertext | tag

    key of a file   HKDF-SHA256 (RFC 5869) of the operator's key, by the header's random salt
    nonce           the number of the sealed part
    header          the bytes before the first part are authenticated with every part
    signature       Ed25519 of the SHA-256 of all bytes before the signature

The header gives the file's size, so a file of another size is refused after its header. One part is
read at a time. The signature over the whole file is checked before any part is used.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.receipts.signing import is_file_signed

MAGIC = b"ratoon prefix 1\n"
LEAST_KEY = 32  # minimum number of characters of the operator's key
_LENGTH = struct.Struct("<I")
_MAX_HEADER = 64 << 10
_MAX_TEXT = 64 << 20
_MAX_UNIT = 16 << 20
_TAG, _KEY, _SALT, _SIGNATURE = 16, 32, 32, 64
_PIECE = 1 << 20
_INFO = b"ratoon prefix file"

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]


class PrefixFileRefused(Exception):
    """A file that is not an exported prefix, was changed, or needs another key."""


class FileHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The unencrypted part of a file: how its prefix was computed, and its parts' sizes."""

    fingerprint: str
    unit_bytes: Annotated[int, msgspec.Meta(ge=1, le=_MAX_UNIT)]
    blocks: Positive
    state_units: Count
    units_a_part: Positive
    text_bytes: Annotated[int, msgspec.Meta(ge=1, le=_MAX_TEXT)]
    tokens_digest: str
    salt: bytes

    @property
    def num_units(self) -> int:
        """The number of units: one for each KV block, and the units of the recurrent state."""
        return self.blocks + self.state_units

    @property
    def num_parts(self) -> int:
        """The number of sealed parts after the text."""
        return -(-self.num_units // self.units_a_part)

    def sealed_bytes(self) -> int:
        """Count the bytes of all sealed parts."""
        tags = (1 + self.num_parts) * _TAG
        return self.text_bytes + self.num_units * self.unit_bytes + tags

    def part_bytes(self, part: int) -> int:
        """Count the bytes of a part of units, without its tag."""
        units = min(self.units_a_part, self.num_units - part * self.units_a_part)
        return units * self.unit_bytes


class _Sealing:
    def __init__(self, key: str, salt: bytes, covered: bytes) -> None:
        derived = HKDF(SHA256(), _KEY, salt, _INFO).derive(key.encode())
        self._box = AESGCM(derived)
        self._covered = hashlib.sha256(covered).digest()

    def seal(self, number: int, content: bytes) -> bytes:
        return self._box.encrypt(number.to_bytes(12, "big"), content, self._covered)

    def open(self, number: int, sealed: bytes) -> bytes:
        try:
            return self._box.decrypt(number.to_bytes(12, "big"), sealed, self._covered)
        except InvalidTag:
            raise PrefixFileRefused("it was not sealed with this key") from None


def new_salt() -> bytes:
    """Draw a file's random salt."""
    return secrets.token_bytes(_SALT)


class SealedWriter:
    """A writer of all of a file but its signature: first the text, then the parts of units."""

    def __init__(self, file: BinaryIO, header: FileHeader, key: str) -> None:
        """Write the header."""
        spelled = msgspec.json.encode(header)
        start = MAGIC + _LENGTH.pack(len(spelled)) + spelled
        self._file = file
        self._sealing = _Sealing(key, header.salt, start)
        self._hash = hashlib.sha256()
        self._number = 0
        self._add(start)

    @property
    def digest(self) -> bytes:
        """The SHA-256 of all bytes written."""
        return self._hash.digest()

    def write(self, part: bytes) -> None:
        """Seal and write a part."""
        self._add(self._sealing.seal(self._number, part))
        self._number += 1

    def _add(self, content: bytes) -> None:
        self._file.write(content)
        self._hash.update(content)


@dataclass(frozen=True, slots=True)
class PrefixFile:
    """An exported prefix's file, open for reading. Its size is the size that its header gives."""

    file: BinaryIO
    header: FileHeader
    start: bytes

    @classmethod
    def of(cls, file: BinaryIO) -> PrefixFile:
        """Read the header. Raises PrefixFileRefused for another kind of file, or another size."""
        size = os.fstat(file.fileno()).st_size
        first = file.read(len(MAGIC) + _LENGTH.size)
        if len(first) < len(MAGIC) + _LENGTH.size or not first.startswith(MAGIC):
            raise PrefixFileRefused("it is no exported prefix of this release")
        (length,) = _LENGTH.unpack(first[len(MAGIC) :])
        if length > _MAX_HEADER:
            raise PrefixFileRefused("its header is too long")
        spelled = file.read(length)
        try:
            header = msgspec.json.decode(spelled, type=FileHeader)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise PrefixFileRefused("it has no valid header") from None
        start = first + spelled
        if size != len(start) + header.sealed_bytes() + _SIGNATURE:
            raise PrefixFileRefused("it is not whole, or longer than its header says")
        return cls(file, header, start)

    def check_signature(self, public_key: str) -> None:
        """Read the whole file. Raises PrefixFileRefused unless this key has signed all of it.

        Raises NotAPublicKey if the key is malformed.
        """
        self.file.seek(0)
        left = len(self.start) + self.header.sealed_bytes()
        digest = hashlib.sha256()
        while left:
            piece = self.file.read(min(left, _PIECE))
            if not piece:
                raise PrefixFileRefused("it is not whole")
            digest.update(piece)
            left -= len(piece)
        if not is_file_signed(digest.digest(), self.file.read(_SIGNATURE), public_key):
            raise PrefixFileRefused("it was changed, or not signed with this public key")

    def text(self, key: str) -> Any:
        """Decrypt the text and decode its JSON. Raises PrefixFileRefused if the key is wrong."""
        self.file.seek(len(self.start))
        opened = self._sealing(key).open(0, self.file.read(self.header.text_bytes + _TAG))
        try:
            return msgspec.json.decode(opened)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise PrefixFileRefused("it has no valid text") from None

    def parts(self, key: str) -> Iterator[tuple[int, bytes]]:
        """Decrypt the parts of units, and yield each part's bytes with its first unit's number."""
        header, sealing = self.header, self._sealing(key)
        self.file.seek(len(self.start) + header.text_bytes + _TAG)
        for part in range(header.num_parts):
            sealed = self.file.read(header.part_bytes(part) + _TAG)
            yield part * header.units_a_part, sealing.open(part + 1, sealed)

    def _sealing(self, key: str) -> _Sealing:
        return _Sealing(key, self.header.salt, self.start)


def read_key(path: Path) -> str:
    """Read the operator's key. Raises OSError, or PrefixFileRefused if the key is too short."""
    try:
        key = path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError:
        key = ""
    if len(key) < LEAST_KEY:
        raise PrefixFileRefused(
            f"{path} has no key of {LEAST_KEY} ASCII characters, as of 'openssl rand -hex 32'"
        )
    return key
