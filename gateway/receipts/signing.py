"""The signatures of receipts: Ed25519 (RFC 8032), with a key derived from the secrets.

All gateways of an installation have the same secrets, so they sign with one key. The key lasts as
long as the secrets. The receipt's JSON is signed in one form: names sorted, no blanks.
"""

import base64
import binascii
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.errors import BadRequest
from gateway.http.bodies.names import check_all_names
from gateway.receipts.receipt import Receipt, SignedReceipt

# maximum bytes of a receipt's file; a receipt has some hundred bytes for each engine
MAX_BYTES = 4 << 20
_KEY_BYTES = 32
_PRIME = 2**255 - 19  # prime of the curve's field
# Prefixes of the signed bytes, so that a signature of one kind is never valid for another kind.
_ABOUT, _ABOUT_FILE = b"ratoon receipt\0", b"ratoon prefix file\0"


class NotAReceipt(ValueError):
    """The error of a file that is no receipt, or is not signed with this key."""


class NotAPublicKey(ValueError):
    """The error of a text that is no public key of an installation."""


class ReceiptKey:
    """The private key of one installation."""

    def __init__(self, pepper: bytes) -> None:
        """Derive the key from the installation's pepper (HKDF, RFC 5869)."""
        seed = HKDF(SHA256(), _KEY_BYTES, None, b"ratoon receipts").derive(pepper)
        self._key = Ed25519PrivateKey.from_private_bytes(seed)

    def __repr__(self) -> str:
        return "ReceiptKey(...)"

    @property
    def public(self) -> str:
        """The public key: 32 bytes in base64url."""
        return _text(self._key.public_key().public_bytes_raw())

    def sign(self, receipt: Receipt) -> SignedReceipt:
        """Sign a receipt."""
        signature = self._key.sign(_ABOUT + _one_form(msgspec.to_builtins(receipt)))
        return SignedReceipt(receipt=receipt, signature=_text(signature))

    def sign_file(self, digest: bytes) -> bytes:
        """Sign the SHA-256 digest of an exported prefix's file; return the 64-byte signature."""
        return self._key.sign(_ABOUT_FILE + digest)


def is_file_signed(digest: bytes, signature: bytes, public_key: str) -> bool:
    """Return whether this public key signed the file with this SHA-256 digest.

    Raises NotAPublicKey if the public key is malformed.
    """
    try:
        _public(public_key).verify(signature, _ABOUT_FILE + digest)
    except InvalidSignature:
        return False
    return True


def verified(content: bytes, public_key: str) -> Receipt:
    """Return the receipt in a file that was signed with this key; raise NotAReceipt, NotAPublicKey.

    The signature covers fields that a later release added, but the result lacks them.
    """
    found, key = _read(content), _public(public_key)
    try:
        key.verify(_raw(found["signature"]), _ABOUT + _one_form(found["receipt"]))
    except (InvalidSignature, ValueError):
        raise NotAReceipt("changed, or not signed with this key") from None
    try:
        return msgspec.convert(found["receipt"], Receipt)
    except (msgspec.ValidationError, RecursionError):
        raise NotAReceipt("a receipt of another release") from None


def _public(public_key: str) -> Ed25519PublicKey:
    try:
        raw = _raw(public_key)
        key = Ed25519PublicKey.from_public_bytes(raw)
    except ValueError:
        raise NotAPublicKey("a public key has 32 bytes, in base64url") from None
    if _is_weak(raw):
        raise NotAPublicKey("anybody can sign for this public key, a point of low order")
    return key


def _is_weak(public_key: bytes) -> bool:
    """Return whether the public key is a point of low order, or is not spelled canonically.

    Ed25519 accepts such keys. X25519 refuses points of low order, so the key is converted to the
    point of Curve25519 (RFC 7748, section 4.1).
    """
    y = int.from_bytes(public_key, "little") & (1 << 255) - 1
    if y >= _PRIME:
        return True
    u = (1 + y) * pow(1 - y, -1, _PRIME) % _PRIME if y != 1 else 0
    try:
        X25519PrivateKey.generate().exchange(
            X25519PublicKey.from_public_bytes(u.to_bytes(_KEY_BYTES, "little"))
        )
    except ValueError:
        return True
    return False


def _read(content: bytes) -> dict[str, Any]:
    if len(content) > MAX_BYTES:
        raise NotAReceipt(f"a file of {len(content)} bytes; a receipt has at most {MAX_BYTES}")
    try:
        found = msgspec.json.decode(content)
        check_all_names(content)  # readers may take either value of a repeated name
    except (msgspec.DecodeError, UnicodeDecodeError, BadRequest, RecursionError):
        raise NotAReceipt("not a receipt's JSON") from None
    if not isinstance(found, dict) or set(found) != {"receipt", "signature"}:
        raise NotAReceipt("not a receipt: it has the fields `receipt` and `signature`")
    if not isinstance(found["signature"], str):
        raise NotAReceipt("not a receipt: its signature is no text")
    return found


def _one_form(receipt: Any) -> bytes:
    return msgspec.json.encode(receipt, order="sorted")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _raw(text: str) -> bytes:
    """Decode base64url in its canonical form; raise ValueError."""
    if not text.isascii():
        raise ValueError("not base64url")
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError("not base64url") from error
    if _text(raw) != text:
        raise ValueError("not the one form of base64url")
    return raw
