"""JSON encoded in fragments equals JSON encoded at once, and only a few items exist at a time."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from gateway.dialects.lazy_json import PIECE_BYTES, LazyList, fragments, listed_now, piece
from gateway.processes.fair_executor import at_once


class Branch(msgspec.Struct):
    name: str
    leaves: Sequence[Any]
    raw: msgspec.Raw
    after: float = 0.5


def grown(random: Random, listed: type[LazyList[Any]] | Any, depth: int = 3) -> Any:
    """Return a random value, which depends only on the seed, with lists of type `listed`."""
    seeds = [random.randrange(1 << 30) for _ in range(random.choice((0, 1, 2, 16, 17, 40)))]
    if not depth:
        return random.choice((None, 1.25, "a\0\n\"'é😀", [], {}))

    def leaf(at: int) -> Any:
        return grown(Random(seeds[at]), listed, depth - 1 - Random(seeds[at]).randrange(depth))

    raw = msgspec.Raw(random.choice((b'{"x": [1]}', b'"\0"')))
    return Branch("\0" * random.randrange(3), listed(len(seeds), leaf), raw)


def test_fragments_are_the_json_that_is_made_at_once() -> None:
    longest = 0
    for seed in range(100):
        spelled = list(fragments(grown(Random(seed), LazyList)))
        longest = max(longest, len(spelled))
        assert b"".join(spelled) == msgspec.json.encode(grown(Random(seed), listed_now))
    assert longest > 100, "some are in fragments"


def test_items_are_made_when_their_turn_comes_and_once() -> None:
    made: list[int] = []

    def item(at: int) -> int:
        made.append(at)
        return at

    spelled = fragments({"items": LazyList(50, item, at_once=10)})
    told = next(spelled) + next(spelled)
    assert (told, made) == (b'{"items":[', [])
    assert (next(spelled), len(made)) == (b"0,1,2,3,4,5,6,7,8,9", 10)
    rest = b"".join(spelled)
    assert made == list(range(50))
    assert rest.endswith(b",49]}")


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        list(fragments({"x": object()}))


def test_pieces_are_of_one_size_and_all_of_it() -> None:
    value = {"items": LazyList(100_000, str)}
    spelled, pieces = fragments(value), []
    while made := at_once(piece(spelled)):
        pieces.append(made)
    assert b"".join(pieces) == msgspec.json.encode({"items": listed_now(100_000, str)})
    assert len(pieces) > 5
    assert all(PIECE_BYTES <= len(one) < PIECE_BYTES + 1024 for one in pieces[:-1])


def test_work_has_many_steps() -> None:
    value = {"items": LazyList(10_000, str)}
    assert sum(1 for _ in piece(fragments(value))) > 3
