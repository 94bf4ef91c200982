"""A receipt can be verified with the public key alone, in any JSON layout, but not after a
change.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from engine.link.erasure import Erasure, TierErasure
from gateway.receipts.receipt import Receipt, joined, moment
from gateway.receipts.signing import (
    MAX_BYTES,
    NotAPublicKey,
    NotAReceipt,
    ReceiptKey,
    is_file_signed,
    verified,
)

KEY = ReceiptKey(b"pepper".ljust(32, b"."))
ERASURE = Erasure(
    tiers=(
        TierErasure(tier="device", blocks=3, states=1, num_bytes=192),
        TierErasure(tier="disk", blocks=2, num_bytes=128),
    ),
    running=0,
    disk="key destroyed",
)
RECEIPT = Receipt(
    id="er_1",
    tenant="tn_1",
    name="caf\u00e9",
    by="operator",
    deleted_at=moment(1e9),
    at=moment(1e9 + 6),
    flush="fl_1",
    keys=2,
    responses=1,
    engines={"0": ERASURE},
    awaited=("1",),
    open=("engine 1 is away",),
)


def signed() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(msgspec.json.encode(KEY.sign(RECEIPT)))
    return content


def test_a_receipt_verifies_however_its_json_is_laid_out() -> None:
    content = signed()
    for spelled in (
        json.dumps(content),
        json.dumps(content, indent=4, ensure_ascii=True, sort_keys=True),
        json.dumps(content, indent=1, ensure_ascii=False),
    ):
        assert verified(spelled.encode(), KEY.public) == RECEIPT


def test_the_key_is_the_installation_s_and_lasts() -> None:
    assert ReceiptKey(b"pepper".ljust(32, b".")).public == KEY.public
    other = ReceiptKey(b"other".ljust(32, b"."))
    assert other.public != KEY.public
    with pytest.raises(NotAReceipt, match="not signed with this key"):
        verified(json.dumps(signed()).encode(), other.public)


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to each text and number in a receipt."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from places(one, (*way, name))
    elif isinstance(value, list):
        for place, one in enumerate(value):
            yield from places(one, (*way, place))
    else:
        yield way


@pytest.mark.parametrize("way", list(places(signed()["receipt"])), ids=str)
def test_any_change_is_noticed(way: tuple[Any, ...]) -> None:
    content = signed()
    at: Any = content["receipt"]
    for step in way[:-1]:
        at = at[step]
    before = at[way[-1]]
    at[way[-1]] = before + 1 if isinstance(before, int) else f"{before}x"
    with pytest.raises(NotAReceipt, match="changed"):
        verified(json.dumps(content).encode(), KEY.public)
    at[way[-1]] = before
    assert verified(json.dumps(content).encode(), KEY.public) == RECEIPT, "the control"


def test_what_is_added_or_left_out_is_noticed() -> None:
    changes: list[Callable[[dict[str, Any]], object]] = [
        lambda one: one["receipt"].pop("awaited"),
        lambda one: one["receipt"]["open"].clear(),
        lambda one: one["receipt"]["engines"].update({"2": {}}),
        lambda one: one["receipt"].update(more=1),
        lambda one: one.update(signature=one["signature"][:-4]),
    ]
    for change in changes:
        content = signed()
        change(content)
        with pytest.raises(NotAReceipt, match="changed"):
            verified(json.dumps(content).encode(), KEY.public)


def last_bits(text: str) -> str:
    """Set the unused bits of the last base64 character."""
    return text[:-1] + chr(ord(text[-1]) + 1)


SPELLED: list[Callable[[str], str]] = [last_bits, lambda text: text + "=" * (-len(text) % 4)]


def test_a_name_given_twice_is_refused() -> None:
    """Refuse a name that is given twice: a reader might show the first value, while the second is
    signed.
    """
    spelled = json.dumps(signed())
    twice = spelled.replace('"keys":', '"keys": 9, "keys":', 1)
    assert json.loads(twice) == json.loads(spelled), "the control"
    with pytest.raises(NotAReceipt):
        verified(twice.encode(), KEY.public)


@pytest.mark.parametrize("spell", SPELLED, ids=range(len(SPELLED)))
def test_a_signature_and_a_key_are_spelled_in_one_form(spell: Callable[[str], str]) -> None:
    """Refuse other spellings of a signature or key.

    base64 decoders ignore bits of the last character, and accept padding, or "+" for "-".
    """
    content, public = signed(), KEY.public
    one, other = content["signature"], spell(content["signature"])
    padded = (text + "=" * (-len(text) % 4) for text in (one, other))
    raw, again = (base64.urlsafe_b64decode(text) for text in padded)
    assert (raw == again, one == other) == (True, False), "the control"
    with pytest.raises(NotAReceipt, match="changed"):
        verified(json.dumps(content | {"signature": other}).encode(), public)
    with pytest.raises(NotAPublicKey, match="public key"):
        verified(json.dumps(content).encode(), spell(public))
    assert verified(json.dumps(content).encode(), public) == RECEIPT


NO_RECEIPTS = [
    b"",
    b"[]",
    b"{}",
    b"\xff",
    b"[" * 100_000,
    b'{"receipt": {}, "signature": 1}',
    b'{"receipt": {}, "signature": "\xc3\xa9"}',
    b'{"receipt": {}, "signature": "", "more": 1}',
    b" " * (MAX_BYTES + 1),
]


@pytest.mark.parametrize("content", NO_RECEIPTS, ids=range(len(NO_RECEIPTS)))
def test_what_is_no_receipt_is_refused(content: bytes) -> None:
    with pytest.raises(NotAReceipt):
        verified(content, KEY.public)


@pytest.mark.parametrize("key", ["", "x", "\u00e9", KEY.public[:-2], KEY.public + "AAAA", "*" * 43])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(NotAPublicKey):
        verified(json.dumps(signed()).encode(), key)


# all points of low order (1, 2, 4 and 8), and other spellings of the first three
LOW_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
]


def accepts(public: bytes, signature: bytes, content: bytes) -> bool:
    """Return whether the cryptography library, without our checks, accepts the signature."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


@pytest.mark.parametrize("spelled", LOW_ORDER)
def test_a_key_of_low_order_is_refused(spelled: str) -> None:
    """Refuse public keys of low order.

    For such a key, one constant signature is valid for every content, or for one content in eight.
    """
    public, nobody_s = bytes.fromhex(spelled), b"\x01" + bytes(63)
    digests = [hashlib.sha256(bytes([number])).digest() for number in range(64)]
    taken = [one for one in digests if accepts(public, nobody_s, b"ratoon prefix file\0" + one)]
    assert taken or int.from_bytes(public, "little") % 2**255 >= 2**255 - 19, "the control"
    key = base64.urlsafe_b64encode(public).rstrip(b"=").decode()
    for digest in digests:
        with pytest.raises(NotAPublicKey, match="public key"):
            is_file_signed(digest, nobody_s, key)
    with pytest.raises(NotAPublicKey, match="public key"):
        verified(json.dumps(signed()).encode(), key)


def test_keys_that_were_drawn_are_accepted() -> None:
    for number in range(64):
        drawn = ReceiptKey(bytes([number]) * 32)
        assert verified(msgspec.json.encode(drawn.sign(RECEIPT)), drawn.public) == RECEIPT


def test_a_signature_of_other_bytes_with_the_same_key_is_none() -> None:
    """Refuse a signature of bytes that are not a receipt, made with the same key."""
    own = Ed25519PrivateKey.generate()
    content = signed()["receipt"]
    spelled = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    signature = msgspec.json.decode(msgspec.json.encode(own.sign(spelled.encode())))
    sent = json.dumps({"receipt": content, "signature": signature}).encode()
    public = msgspec.json.decode(msgspec.json.encode(own.public_key().public_bytes_raw()))
    with pytest.raises(NotAReceipt):
        verified(sent, public.translate(str.maketrans("+/", "-_")).rstrip("="))


def test_two_flushes_add_up_and_the_later_tells_the_end() -> None:
    more = Erasure(
        tiers=(
            TierErasure(tier="device", blocks=1, num_bytes=64),
            TierErasure(tier="host", blocks=4, num_bytes=256),
        ),
        running=1,
        disk="under way",
    )
    assert joined(ERASURE, more) == Erasure(
        tiers=(
            TierErasure(tier="device", blocks=4, states=1, num_bytes=256),
            TierErasure(tier="disk", blocks=2, num_bytes=128),
            TierErasure(tier="host", blocks=4, num_bytes=256),
        ),
        running=1,
        disk="under way",
    )
    unknown = msgspec.structs.replace(more, tiers=None)
    assert joined(unknown, ERASURE) == ERASURE
    assert joined(ERASURE, unknown).tiers == ERASURE.tiers
    assert joined(unknown, unknown).tiers is None
