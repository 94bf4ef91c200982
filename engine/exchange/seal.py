"""Encryption of blocks between two engines: AES-256-GCM under a key of their namespace.

    key of a fetch and a namespace = HMAC(namespace, fingerprint | both salts)
    sealed block                   = payload | tag, the block's position is the nonce
    covered by the tag beside it   = position | key of the block | its tokens
    tag of slots, of many blocks   = HMAC(that key, slots | position | keys | tokens)

A namespace is 16 bytes that gateways make with the secret of their state, and it never crosses
between engines. So a block opens for a request under the very namespace that it lies in at the
source, at its place after the tokens that it builds on, and for nothing else: an engine that was
sent a block of another tenant by mistake has noise. Each fetch has keys of its own, since both
ends add salt; so no nonce is used twice.

Knows: bytes. Does not know: who may have a block, or how it travels.
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
SEAL_BYTES = TAG_BYTES  # bytes of the tag of blocks that the receiver copies from the sender's pool

_PLACE = struct.Struct("<Q")
_NAME, _KEY, _SLOTS = b"ratoon exchange name", b"ratoon exchange key", b"slots"

Bytes = bytes | bytearray | memoryview


class NotSound(Exception):
    """Bytes that fail authentication for this request. It says no more."""


@dataclass(frozen=True, slots=True)
class SealedPlace:
    """Binding of a sealed block, or of successive blocks of one namespace.

    The place of the first one in the prompt, all of their keys, and all of their tokens as int32.
    """

    position: int
    namespace: Namespace
    keys: bytes
    token_ids: bytes

    @property
    def covered(self) -> bytes:
        """Bytes that the tag authenticates beside the payload."""
        return _PLACE.pack(self.position) + self.keys + self.token_ids


class Seal:
    """Cipher of one fetch, the same at both ends. For one thread."""

    def __init__(self, fingerprint: bytes, asking_salt: bytes, answering_salt: bytes) -> None:
        self._bound = _KEY + fingerprint + asking_salt + answering_salt
        self._keys: dict[Namespace, bytes] = {}

    def seal(self, place: SealedPlace, payload: Bytes) -> bytearray:
        """Encrypt a payload; return it with its tag."""
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
        """Make a tag of the pool's slots that hold blocks; the blocks' bytes are not covered.

        `slots`: int32, little endian, one of each block of `place`.
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
    """Hash a namespace to its name between engines: 16 bytes that do not reveal it."""
    return hashlib.sha256(_NAME + namespace).digest()[:16]


def _nonce(place: SealedPlace) -> bytes:
    return place.position.to_bytes(12, "big")
