"""A sealed block opens at its place, under its namespace, in its fetch, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.exchange.seal import Bytes, NotSound, Seal, SealedPlace, name_of
from prefix_cache.namespace import Namespace

A, B = Namespace(b"a" * 16), Namespace(b"b" * 16)
PLACE = SealedPlace(7, A, b"k" * 16, bytes(range(64)))
PAYLOAD = bytes(range(256)) * 8
FETCH = (b"f" * 32, b"1" * 16, b"2" * 16)

OTHERS = {
    "namespace": replace(PLACE, namespace=B),
    "position": replace(PLACE, position=8),
    "key, so what it builds on": replace(PLACE, key=b"l" * 16),
    "tokens": replace(PLACE, token_ids=bytes(64)),
}


def opened(sealed: Bytes, place: SealedPlace = PLACE, fetch: tuple[bytes, ...] = FETCH) -> bytes:
    into = bytearray(len(PAYLOAD))
    Seal(*fetch).open(place, sealed, memoryview(into))
    return bytes(into)


def test_it_opens_at_the_other_end_and_reads_as_noise_on_the_way() -> None:
    sealed = Seal(*FETCH).seal(PLACE, PAYLOAD)
    assert opened(sealed) == PAYLOAD
    assert PAYLOAD[:32] not in bytes(sealed)


@pytest.mark.parametrize("what", OTHERS)
def test_it_opens_for_nothing_else(what: str) -> None:
    sealed = Seal(*FETCH).seal(PLACE, PAYLOAD)
    with pytest.raises(NotSound):
        opened(sealed, OTHERS[what])
    assert opened(Seal(*FETCH).seal(OTHERS[what], PAYLOAD), OTHERS[what]) == PAYLOAD


@pytest.mark.parametrize("part", range(3))
def test_it_opens_in_no_other_fetch_and_for_no_other_model(part: int) -> None:
    other = [*FETCH]
    other[part] = b"?" * len(other[part])
    with pytest.raises(NotSound):
        opened(Seal(*FETCH).seal(PLACE, PAYLOAD), PLACE, tuple(other))


def test_what_was_changed_or_cut_does_not_open() -> None:
    sealed = Seal(*FETCH).seal(PLACE, PAYLOAD)
    for at in (0, 100, len(sealed) - 1):
        damaged = bytearray(sealed)
        damaged[at] ^= 1
        with pytest.raises(NotSound):
            opened(bytes(damaged))
    for cut in (b"", sealed[:-1], bytes(sealed) + b"\0"):
        with pytest.raises(NotSound):
            opened(cut)


def test_a_slot_is_bound_to_its_block() -> None:
    seal = Seal(*FETCH)
    said = seal.seal_slot(PLACE, 5)
    Seal(*FETCH).check_slot(PLACE, 5, said)
    for place, slot in [(PLACE, 6), *((other, 5) for other in OTHERS.values())]:
        with pytest.raises(NotSound):
            seal.check_slot(place, slot, said)


def test_a_name_says_which_namespace_and_not_what_it_is() -> None:
    assert name_of(A) == name_of(Namespace(bytes(A)))
    assert len({name_of(A), name_of(B), A, B}) == 4
