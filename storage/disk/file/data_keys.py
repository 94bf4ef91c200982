"""The keys that seal records: one key for the directory, or one key for every owner.

With encryption, each owner has a random key that encrypts the owner's records. The key is stored
only in the file of keys. Once the key is erased there, the owner's records are unreadable
everywhere. This holds even for copies of the file of records and for sectors that were never
overwritten. A record names its key by a random id, so the file of records does not tell whose a
record is.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from storage.disk.file.private_file import read_private, write_private

KEY_BYTES = 32
KEY_ID_BYTES = 16
NO_KEY_ID = bytes(KEY_ID_BYTES)


class SealingKey(msgspec.Struct, frozen=True, array_like=True):
    """A sealing key and the id by which records name it."""

    id: bytes
    key: bytes

    def __repr__(self) -> str:
        return "SealingKey(...)"


@dataclass(frozen=True)
class DirectoryKey:
    """A secret that authenticates all records and encrypts none."""

    key: SealingKey
    encrypts: Literal[False] = False

    @classmethod
    def load(cls, path: Path) -> DirectoryKey:
        """Read the secret in `path`, which the first start creates. Raises OSError."""
        secret = read_private(path)
        if secret is None or len(secret) != KEY_BYTES:
            secret = secrets.token_bytes(KEY_BYTES)
            write_private(path, secret)
        return cls(SealingKey(NO_KEY_ID, secret))

    def of_owner(self, owner: str) -> SealingKey:  # noqa: ARG002
        """Return the directory's key for any owner."""
        return self.key

    def by_id(self, key_id: bytes) -> SealingKey | None:
        """Return the directory's key if `key_id` is its id."""
        return self.key if key_id == NO_KEY_ID else None

    def forget(self, owner: str) -> None:
        """Do nothing, because an owner has no own key that could be erased."""


class DataKeys:
    """A random 256-bit key for each owner, in one file.

    Used by one thread, but any thread may call `by_id`.
    """

    encrypts = True

    def __init__(self, path: Path) -> None:
        """Read the keys in `path`. A damaged file counts as empty, so no record is readable."""
        self._path = path
        self._by_owner = _decode(read_private(path))
        self._by_id = {key.id: key for key in self._by_owner.values()}

    def of_owner(self, owner: str) -> SealingKey:
        """Return the owner's key. A new key is saved before it seals a record. Raises OSError."""
        key = self._by_owner.get(owner)
        if key is None:
            key = SealingKey(secrets.token_bytes(KEY_ID_BYTES), secrets.token_bytes(KEY_BYTES))
            self._save({**self._by_owner, owner: key})
        return key

    def by_id(self, key_id: bytes) -> SealingKey | None:
        """Return the key with this id, or None if it never existed or was erased."""
        return self._by_id.get(key_id)

    def forget(self, owner: str) -> None:
        """Erase the owner's key, from memory first and then from the disk. Raises OSError."""
        key = self._by_owner.get(owner)
        if key is not None:
            self._by_id.pop(key.id, None)
            self._save({name: k for name, k in self._by_owner.items() if name != owner})

    def _save(self, by_owner: dict[str, SealingKey]) -> None:
        write_private(self._path, msgspec.msgpack.encode(by_owner))
        self._by_owner = by_owner
        self._by_id = {key.id: key for key in by_owner.values()}


KeyRing = DirectoryKey | DataKeys


def _decode(content: bytes | None) -> dict[str, SealingKey]:
    if content is None:
        return {}
    try:
        keys = msgspec.msgpack.decode(content, type=dict[str, SealingKey])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    sound = all(len(k.id) == KEY_ID_BYTES and len(k.key) == KEY_BYTES for k in keys.values())
    return keys if sound else {}
