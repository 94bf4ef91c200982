"""Single flight: of several equal prompts, only one is computed."""

from __future__ import annotations

from random import Random

from prefix_cache.hashing import block_keys
from prefix_cache.leases.single_flight import SingleFlight
from tests.doubles.gateway.keys import split_keys
from tests.prefix_cache.support.scene import ConstantDigest, path, tokens


def test_a_key_is_held_from_begin_to_done() -> None:
    flight = SingleFlight[str]()
    assert flight.holder_of(b"k") is None
    flight.begin("a", [b"k", b"l"])
    assert flight.holder_of(b"k") is not None
    flight.done("a", [b"k"])
    assert flight.holder_of(b"k") is None
    assert flight.holder_of(b"l") is not None


def test_the_first_holder_keeps_the_key() -> None:
    flight = SingleFlight[str]()
    flight.begin("a", [b"k"])
    flight.begin("b", [b"k", b"m"])
    flight.done("b", [b"k", b"m"])
    assert flight.holder_of(b"k") is not None
    assert flight.holder_of(b"m") is None
    flight.end("b")
    assert flight.holder_of(b"k") is not None
    flight.done("a", [b"k"])
    assert flight.holder_of(b"k") is None


def test_end_forgets_all_of_one_holder() -> None:
    flight = SingleFlight[str]()
    flight.begin("a", [b"k", b"l"])
    flight.begin("b", [b"m"])
    flight.end("a")
    flight.end("a")
    flight.end("never seen")
    assert [flight.holder_of(key) for key in (b"k", b"l", b"m")] == [None, None, "b"]


def test_a_key_can_be_begun_anew() -> None:
    flight = SingleFlight[str]()
    flight.begin("a", [b"k"])
    flight.end("a")
    flight.begin("b", [b"k"])
    flight.done("a", [b"k"])
    assert flight.holder_of(b"k") is not None


def test_with_a_constant_hash_nobody_waits_for_ever() -> None:
    keys = split_keys(block_keys(path("a"), tokens(1, 2, 3, 4), 2, digest=ConstantDigest()))
    flight = SingleFlight[str]()
    flight.begin("a", keys)
    flight.begin("b", keys)
    assert flight.holder_of(keys[0]) == "a"
    flight.end("b")
    assert flight.holder_of(keys[0]) == "a"
    flight.done("a", keys[:1])
    assert flight.holder_of(keys[0]) is None
    flight.end("a")
    assert flight.holder_of(keys[1]) is None


def test_holders_are_what_a_plain_dict_says() -> None:
    random, flight, plain = Random(5), SingleFlight[int](), dict[bytes, int]()
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
        keys = [bytes([k]) for k in range(8)]
        assert [flight.holder_of(key) for key in keys] == [plain.get(key) for key in keys]
    for holder in range(4):
        flight.end(holder)
    assert all(flight.holder_of(bytes([k])) is None for k in range(8))
