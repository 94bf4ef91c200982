"""Sealed bytes are opened unchanged, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from storage.disk.file.data_keys import DataKeys, DirectoryKey, KeyRing
from storage.disk.file.seal import RecordNotSound, RecordSeal
from tests.doubles.reachable import reachable
from tests.examples import examples
from tests.storage.scene import FINGERPRINT, record

PAYLOAD = bytes(range(256)) * 8


@pytest.fixture(params=[False, True], ids=["clear", "encrypted"])
def keys(request: pytest.FixtureRequest, tmp_path: Path) -> KeyRing:
    return DataKeys(tmp_path / "keys") if request.param else DirectoryKey.load(tmp_path / "secret")


def sealed(seal: RecordSeal, slot: int = 7) -> tuple[bytes, bytes]:
    header, payload = seal.seal(slot, record(3), memoryview(PAYLOAD), bytearray(len(PAYLOAD)))
    return header, bytes(payload)


def opened(seal: RecordSeal, header: bytes, payload: bytes) -> bytes:
    into = bytearray(payload)
    source = memoryview(payload) if seal.encrypts else memoryview(into)
    seal.open_payload(seal.open_header(header), source, memoryview(into))
    return bytes(into)


def test_opens_what_was_sealed(keys: KeyRing) -> None:
    seal = RecordSeal(keys, FINGERPRINT, len(PAYLOAD))
    header, payload = sealed(seal)
    assert (seal.open_header(header).slot, seal.open_header(header).record) == (7, record(3))
    assert opened(seal, header, payload) == PAYLOAD
    assert (payload == PAYLOAD) != seal.encrypts


def test_no_two_seals_are_alike(keys: KeyRing) -> None:
    seal = RecordSeal(keys, FINGERPRINT, len(PAYLOAD))
    (first, one), (second, other) = sealed(seal), sealed(seal)
    assert first != second
    assert (one == other) != seal.encrypts
    with pytest.raises(RecordNotSound):
        opened(seal, first[:-16] + second[-16:], one)


def test_a_forgotten_owner_s_key_stays_in_no_part_of_the_seal(tmp_path: Path) -> None:
    keys = DataKeys(tmp_path / "keys")
    seal = RecordSeal(keys, FINGERPRINT, len(PAYLOAD))
    header, payload = sealed(seal)
    assert opened(seal, header, payload) == PAYLOAD
    assert any(isinstance(one, AESGCM) for one in reachable(seal))
    seal.forget(record(3).owner)
    with pytest.raises(RecordNotSound):
        seal.open_header(header)
    assert not any(isinstance(one, AESGCM) for one in reachable(seal))


def test_every_bit_of_a_header_counts(keys: KeyRing) -> None:
    seal = RecordSeal(keys, FINGERPRINT, len(PAYLOAD))
    header, _ = sealed(seal)
    for bit in range(len(header) * 8):
        flipped = bytearray(header)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordNotSound):
            seal.open_header(flipped)
    assert seal.open_header(header).record == record(3)


def test_a_header_that_was_cut_off_anywhere_is_none(keys: KeyRing) -> None:
    seal = RecordSeal(keys, FINGERPRINT, len(PAYLOAD))
    header, _ = sealed(seal)
    for length in range(len(header)):
        with pytest.raises(RecordNotSound):
            seal.open_header(header[:length])
    assert seal.open_header(header).slot == 7


def test_bits_of_a_payload_count(keys: KeyRing) -> None:
    seal = RecordSeal(keys, FINGERPRINT, len(PAYLOAD))
    header, payload = sealed(seal)
    for bit in range(0, len(payload) * 8, 41):
        flipped = bytearray(payload)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordNotSound):
            opened(seal, header, bytes(flipped))
    for cut in (b"", payload[:-1], payload + b"\0"):
        with pytest.raises(RecordNotSound):
            opened(seal, header, cut)
    assert opened(seal, header, payload) == PAYLOAD


@examples(4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=600))
def test_noise_is_not_a_header(keys: KeyRing, noise: bytes) -> None:
    seal = RecordSeal(keys, FINGERPRINT, len(PAYLOAD))
    header, _ = sealed(seal)
    for content in (noise, header[:100] + noise, noise + header[100:], header + noise[:1] + b"x"):
        with pytest.raises(RecordNotSound):
            seal.open_header(content)


@pytest.mark.parametrize("other", ["fingerprint", "block size", "secret", "mode"])
def test_another_seal_does_not_open_it(keys: KeyRing, other: str, tmp_path: Path) -> None:
    header, _ = sealed(RecordSeal(keys, FINGERPRINT, len(PAYLOAD)))
    fresh: KeyRing = DirectoryKey.load(tmp_path / "other")
    strangers = {
        "fingerprint": RecordSeal(keys, b"g" * 32, len(PAYLOAD)),
        "block size": RecordSeal(keys, FINGERPRINT, 4096),
        "secret": RecordSeal(
            DataKeys(tmp_path / "o") if keys.encrypts else fresh, FINGERPRINT, 2048
        ),
        "mode": RecordSeal(fresh if keys.encrypts else DataKeys(tmp_path / "o"), FINGERPRINT, 2048),
    }
    with pytest.raises(RecordNotSound):
        strangers[other].open_header(header)
