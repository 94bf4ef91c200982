"""The seal of a record, AES-256-GCM, which detects any change of its bytes.

    header    magic | version | mode | slot | payload bytes | body bytes | fingerprint | key id
              | header nonce | payload nonce | payload tag | body | header tag
    payload   the block, encrypted or not, at its own length

The body is the record: key, parent, namespace, owner, token ids. The payload's tag covers the
header's first part, the body and the payload. The header's tag covers the header and the payload's
tag. So a header can be trusted without its payload, as in a scan of all headers. A payload belongs
to one header, and both belong to one slot of one fingerprint.

Without encryption, header and payload are associated data under one secret: GMAC, five times as
fast as HMAC-SHA256 on a block of 2 MiB. With encryption, body and payload are ciphertext under the
owner's key. Nonces are random, 96 bits: good for 2^32 records under a key.
"""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from storage.disk.file.data_keys import KEY_ID_BYTES, KeyRing, SealingKey
from storage.move import BlockRecord

_MAGIC = b"RtBk"
_VERSION = 1
_CLEAR, _ENCRYPTED = 0, 1
_NONCE_BYTES = 12
_TAG_BYTES = 16
_FIXED = struct.Struct(f"<4sHHIII32s{KEY_ID_BYTES}s{_NONCE_BYTES}s{_NONCE_BYTES}s")
_BODY = msgspec.msgpack.Decoder(BlockRecord)

Bytes = bytes | bytearray | memoryview


class RecordNotSound(Exception):
    """Bytes that were not sealed here. The error gives an attacker no detail."""


@dataclass(frozen=True, slots=True)
class Header:
    """A header with a sound seal."""

    slot: int
    record: BlockRecord
    key: SealingKey
    payload_nonce: bytes
    payload_tag: bytes
    covered: bytes  # bytes that the payload's tag covers in addition to the payload


class RecordSeal:
    """The seal of the records of one fingerprint and block size. Threads may share it."""

    def __init__(self, keys: KeyRing, fingerprint: bytes, block_bytes: int) -> None:
        self._keys = keys
        self._fingerprint = fingerprint
        self._block_bytes = block_bytes
        self._mode = _ENCRYPTED if keys.encrypts else _CLEAR
        # reused, because creating a box takes longer than opening a header
        self._boxes: dict[bytes, AESGCM] = {}

    def seal(
        self, slot: int, record: BlockRecord, payload: memoryview, scratch: bytearray
    ) -> tuple[bytes, Bytes]:
        """Seal a block as (header, payload). Raises OSError if a new key cannot be stored.

        `scratch` has `block_bytes` bytes. The returned payload is `payload` itself or lies in
        `scratch`.
        """
        key = self._keys.of_owner(record.owner)
        nonces = secrets.token_bytes(2 * _NONCE_BYTES)
        body = msgspec.msgpack.encode(record)
        fixed = _FIXED.pack(
            _MAGIC, _VERSION, self._mode, slot, self._block_bytes, len(body),
            self._fingerprint, key.id, nonces[:_NONCE_BYTES], nonces[_NONCE_BYTES:],
        )  # fmt: skip
        payload_tag = self._seal_payload(key, nonces[_NONCE_BYTES:], fixed + body, payload, scratch)
        first = fixed + payload_tag
        kept_body, tag = self._seal_body(key, nonces[:_NONCE_BYTES], first, body)
        kept = scratch if self._mode == _ENCRYPTED else payload
        return first + kept_body + tag, kept

    def open_header(self, content: Bytes) -> Header:
        """Open an unchanged header that was sealed here. Raises RecordNotSound for other bytes."""
        content = bytes(content)
        if len(content) < _FIXED.size + 2 * _TAG_BYTES:
            raise RecordNotSound
        fixed, first = content[: _FIXED.size], content[: _FIXED.size + _TAG_BYTES]
        magic, version, mode, slot, size, body_size, fingerprint, key_id, nonce, payload_nonce = (
            _FIXED.unpack(fixed)
        )
        kept_body, tag = content[len(first) : -_TAG_BYTES], content[-_TAG_BYTES:]
        expected = (_MAGIC, _VERSION, self._mode, self._block_bytes, self._fingerprint)
        key = self._keys.by_id(key_id)
        if (magic, version, mode, size, fingerprint) != expected or key is None:
            raise RecordNotSound
        if body_size != len(kept_body):
            raise RecordNotSound
        body = self._open_body(key, nonce, tag, first, kept_body)
        try:
            record = _BODY.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise RecordNotSound from error
        return Header(slot, record, key, payload_nonce, first[_FIXED.size :], fixed + body)

    def open_payload(self, header: Header, kept: memoryview, into: memoryview) -> None:
        """Decrypt the block into `into`, whose content is invalid after RecordNotSound.

        Without encryption, `kept` is `into` itself, and the block is only checked.
        """
        if len(kept) != self._block_bytes:
            raise RecordNotSound
        mode = modes.GCM(header.payload_nonce, header.payload_tag)
        opening = Cipher(algorithms.AES(header.key.key), mode).decryptor()
        opening.authenticate_additional_data(header.covered)
        if self._mode == _ENCRYPTED:
            opening.update_into(kept, into)
        else:
            opening.authenticate_additional_data(kept)
        try:
            opening.finalize()
        except InvalidTag as error:
            raise RecordNotSound from error

    @property
    def encrypts(self) -> bool:
        """True if stored records are encrypted."""
        return self._mode == _ENCRYPTED

    def forget(self, owner: str) -> None:
        """Erase the key of `owner`, if it has its own key. Raises OSError."""
        self._keys.forget(owner)
        self._boxes.clear()

    def _box(self, key: SealingKey) -> AESGCM:
        box = self._boxes.get(key.id)
        if box is None:
            box = self._boxes[key.id] = AESGCM(key.key)
        return box

    def _seal_payload(
        self, key: SealingKey, nonce: bytes, covered: bytes, payload: memoryview, into: bytearray
    ) -> bytes:
        sealing = Cipher(algorithms.AES(key.key), modes.GCM(nonce)).encryptor()
        sealing.authenticate_additional_data(covered)
        if self._mode == _ENCRYPTED:
            sealing.update_into(payload, into)
        else:
            sealing.authenticate_additional_data(payload)
        sealing.finalize()
        return sealing.tag

    def _seal_body(
        self, key: SealingKey, nonce: bytes, first: bytes, body: bytes
    ) -> tuple[bytes, bytes]:
        box = self._box(key)
        if self._mode == _CLEAR:
            return body, box.encrypt(nonce, b"", first + body)
        kept = box.encrypt(nonce, body, first)
        return kept[:-_TAG_BYTES], kept[-_TAG_BYTES:]

    def _open_body(
        self, key: SealingKey, nonce: bytes, tag: bytes, first: bytes, body: bytes
    ) -> bytes:
        box = self._box(key)
        try:
            if self._mode == _CLEAR:
                box.decrypt(nonce, tag, first + body)
                return body
            return box.decrypt(nonce, body + tag, first)
        except InvalidTag as error:
            raise RecordNotSound from error
