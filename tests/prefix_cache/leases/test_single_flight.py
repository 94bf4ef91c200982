"""Single flight."""

from __future__ import annotations

from random import Random

from prefix_cache.hashing import block_keys
from prefix_cache.leases.single_flight import SingleFlight
from tests.doubles.gateway.keys import split_keys
from tests.prefix_cache.scene import ConstantDigest, path, tokens


def test_a_key_is_held_from_begin_to_done() -> None:
    flight = SingleFlight()
    assert not flight.is_held(b"k")
    flight.begin("a", [b"k", b"l"])
    assert flight.is_held(b"k")
    flight.done("a", [b"k"])
    assert not flight.is_held(b"k")
    assert flight.is_held(b"l")


def test_the_first_holder_keeps_the_key() -> None:
    flight = SingleFlight()
    flight.begin("a", [b"k"])
    flight.begin("b", [b"k", b"m"])
    flight.done("b", [b"k", b"m"])
    assert flight.is_held(b"k")
    assert not flight.is_held(b"m")
    flight.end("b")
    assert flight.is_held(b"k")
    flight.done("a", [b"k"])
    assert not flight.is_held(b"k")


def test_end_forgets_all_of_one_holder() -> None:
    flight = SingleFlight()
    flight.begin("a", [b"k", b"l"])
    flight.begin("b", [b"m"])
    flight.end("a")
    flight.end("a")
    flight.end("never seen")
    assert [flight.is_held(key) for key in (b"k", b"l", b"m")] == [False, False, True]


def test_a_key_can_be_begun_anew() -> None:
    flight = SingleFlight()
    flight.begin("a", [b"k"])
    flight.end("a")
    flight.begin("b", [b"k"])
    flight.done("a", [b"k"])
    assert flight.is_held(b"k")


def test_with_a_constant_hash_nobody_waits_for_ever() -> None:
    keys = split_keys(block_keys(path("a"), tokens(1, 2, 3, 4), 2, digest=ConstantDigest()))
    flight = SingleFlight()
    flight.begin("a", keys)
    flight.begin("b", keys)
    assert flight.is_held(keys[0])
    flight.end("b")
    assert flight.is_held(keys[0])
    flight.done("a", keys[:1])
    assert not flight.is_held(keys[0])
    flight.end("a")
    assert not flight.is_held(keys[1])


def test_holders_are_what_a_plain_dict_says() -> None:
    random, flight, plain = Random(5), SingleFlight(), dict[bytes, int]()
    for _ in range(5000):
        holder = random.randrange(4)
        keys = [bytes([random.randrange(8)]) for _ in range(random.randrange(4))]
        match random.randrange(3):
            case 0:
                flight.begin(holder, keys)
                for key in keys:
                    plain.setdefault(key, holder)
            case 1:
                flight.done(holder, keys)
                plain = {k: h for k, h in plain.items() if h != holder or k not in keys}
            case _:
                flight.end(holder)
                plain = {k: h for k, h in plain.items() if h != holder}
        assert [flight.is_held(bytes([k])) for k in range(8)] == [
            bytes([k]) in plain for k in range(8)
        ]
    for holder in range(4):
        flight.end(holder)
    assert not any(flight.is_held(bytes([k])) for k in range(8))
