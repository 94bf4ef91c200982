"""A sealed block can be opened only at its position, under its namespace and in its fetch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.exchange.seal import SEAL_BYTES, Bytes, NotSound, Seal, SealedPlace, name_of
from prefix_cache.namespace import Namespace

A, B = Namespace(b"a" * 16), Namespace(b"b" * 16)
PLACE = SealedPlace(7, A, b"k" * 16, bytes(range(64)))
PAYLOAD = bytes(range(256)) * 8
FETCH = (b"f" * 32, b"1" * 16, b"2" * 16)

OTHERS = {
    "namespace": replace(PLACE, namespace=B),
    "position": replace(PLACE, position=8),
    "key, so what it builds on": replace(PLACE, keys=b"l" * 16),
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


RUN = SealedPlace(7, A, b"k" * 16 + b"l" * 16 + b"m" * 16, bytes(range(192)))
SLOTS = (5).to_bytes(4, "little") + (6).to_bytes(4, "little") + (9).to_bytes(4, "little")


def swapped(items: bytes, size: int) -> bytes:
    """Exchange the first two items."""
    return items[size : 2 * size] + items[:size] + items[2 * size :]


@pytest.mark.parametrize(
    ("what", "place", "slots"),
    [
        ("another slot", RUN, SLOTS[:-4] + (8).to_bytes(4, "little")),
        ("slots of each other", RUN, swapped(SLOTS, 4)),
        ("fewer slots", RUN, SLOTS[:-4]),
        ("another namespace", replace(RUN, namespace=B), SLOTS),
        ("another position", replace(RUN, position=8), SLOTS),
        ("another key in the middle", replace(RUN, keys=b"k" * 16 + b"!" * 16 + b"m" * 16), SLOTS),
        ("keys of each other", replace(RUN, keys=swapped(RUN.keys, 16)), SLOTS),
        ("another token", replace(RUN, token_ids=RUN.token_ids[:-1] + b"!"), SLOTS),
        ("tokens of each other", replace(RUN, token_ids=swapped(RUN.token_ids, 64)), SLOTS),
        ("one block of them", SealedPlace(7, A, b"k" * 16, bytes(range(64))), SLOTS[:4]),
        ("bytes in the next field", replace(RUN, token_ids=b"m" + RUN.token_ids[1:]), SLOTS),
    ],
)
def test_slots_are_bound_to_their_blocks(what: str, place: SealedPlace, slots: bytes) -> None:
    seal = Seal(*FETCH)
    said = seal.seal_slots(RUN, SLOTS)
    assert len(said) == SEAL_BYTES
    Seal(*FETCH).check_slots(RUN, SLOTS, said)
    with pytest.raises(NotSound):
        seal.check_slots(place, slots, said)
    seal.check_slots(place, slots, Seal(*FETCH).seal_slots(place, slots))
    assert what


@pytest.mark.parametrize("part", range(3))
def test_slots_are_those_of_their_fetch_alone(part: int) -> None:
    other = [*FETCH]
    other[part] = b"?" * len(other[part])
    said = Seal(*FETCH).seal_slots(RUN, SLOTS)
    for wrong in (said[:-1], said + b"!", b"", Seal(*other).seal_slots(RUN, SLOTS)):
        with pytest.raises(NotSound):
            Seal(*FETCH).check_slots(RUN, SLOTS, wrong)
    Seal(*FETCH).check_slots(RUN, SLOTS, said)


def test_a_name_says_which_namespace_and_not_what_it_is() -> None:
    assert name_of(A) == name_of(Namespace(bytes(A)))
    assert len({name_of(A), name_of(B), A, B}) == 4
