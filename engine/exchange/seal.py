"""The encryption of KV blocks between two engines: AES-256-GCM with a key from their namespace.

    key of a fetch and a namespace = HMAC(namespace, fingerprint | both salts)
    sealed block                   = payload | tag, the block's position is the nonce
    also covered by the tag        = position | key of the block | its tokens
    tag of the slots of blocks     = HMAC(key as above, slots | position | keys | tokens)

A namespace is 16 bytes that gateways derive from a secret. Engines never send a namespace to each
other. A block can therefore be decrypted only for a request in the same namespace, at the same
position and after the same tokens. An engine that gets another tenant's block by mistake cannot
read it. Both engines add a random salt to the key, so no nonce is used twice with one key.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from prefix_cache.namespace import Namespace

TAG_BYTES = 16
SEAL_BYTES = TAG_BYTES

_PLACE = struct.Struct("<Q")
_NAME, _KEY, _SLOTS = b"ratoon exchange name", b"ratoon exchange key", b"slots"

Bytes = bytes | bytearray | memoryview


class NotSound(Exception):
    """An error for bytes that fail authentication."""


@dataclass(frozen=True, slots=True)
class SealedPlace:
    """The data with which a block, or successive blocks of one namespace, are authenticated.

    `position` is the first block's position in the prompt. `keys` and `token_ids` (int32) cover all
    blocks.
    """

    position: int
    namespace: Namespace
    keys: bytes
    token_ids: bytes

    @property
    def covered(self) -> bytes:
        """The bytes that the tag authenticates in addition to the payload."""
        return _PLACE.pack(self.position) + self.keys + self.token_ids


class Seal:
    """The cipher of one fetch, the same at both ends. Used by one thread only."""

    def __init__(self, fingerprint: bytes, asking_salt: bytes, answering_salt: bytes) -> None:
        self._bound = _KEY + fingerprint + asking_salt + answering_salt
        self._keys: dict[Namespace, bytes] = {}

    def seal(self, place: SealedPlace, payload: Bytes) -> bytearray:
        """Encrypt a payload. Return it with its tag."""
        box = Cipher(algorithms.AES(self._key(place.namespace)), modes.GCM(_nonce(place)))
        sealing = box.encryptor()
        sealing.authenticate_additional_data(place.covered)
        sealed = bytearray(len(payload) + TAG_BYTES)
        view = memoryview(sealed)
        sealing.update_into(payload, view[: len(payload)])
        sealing.finalize()
        view[len(payload) :] = sealing.tag
        return sealed

    def open(self, place: SealedPlace, sealed: Bytes, into: memoryview) -> None:
        """Decrypt the payload into `into`. Raises NotSound, which leaves `into` invalid."""
        view = memoryview(sealed)
        if len(view) != len(into) + TAG_BYTES:
            raise NotSound
        tag = bytes(view[len(into) :])
        mode = modes.GCM(_nonce(place), tag)
        opening = Cipher(algorithms.AES(self._key(place.namespace)), mode).decryptor()
        opening.authenticate_additional_data(place.covered)
        opening.update_into(view[: len(into)], into)
        try:
            opening.finalize()
        except InvalidTag as error:
            raise NotSound from error

    def seal_slots(self, place: SealedPlace, slots: bytes) -> bytes:
        """Make a tag that authenticates the slots of `place`'s blocks, but not the blocks' bytes.

        `slots` are int32, little endian, one for each block.
        """
        content = _SLOTS + _PLACE.pack(len(slots)) + slots + place.covered
        return hmac.digest(self._key(place.namespace), content, hashlib.sha256)[:SEAL_BYTES]

    def check_slots(self, place: SealedPlace, slots: bytes, seal: bytes) -> None:
        """Raise NotSound unless `seal` is the tag of these slots."""
        if not hmac.compare_digest(self.seal_slots(place, slots), seal):
            raise NotSound

    def _key(self, namespace: Namespace) -> bytes:
        key = self._keys.get(namespace)
        if key is None:
            key = self._keys[namespace] = hmac.digest(namespace, self._bound, hashlib.sha256)
        return key


def name_of(namespace: Namespace) -> bytes:
    """Hash a namespace to 16 bytes that do not reveal the namespace."""
    return hashlib.sha256(_NAME + namespace).digest()[:16]


def _nonce(place: SealedPlace) -> bytes:
    return place.position.to_bytes(12, "big")
