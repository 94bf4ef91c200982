"""Log-probabilities are packed and unpacked without losing a bit."""

from __future__ import annotations

import sys
from random import Random

from engine.link.event_messages import TokenLogprobs
from gateway.generation.packed_logprobs import PackedLogprobs, packed_bytes


def some(random: Random, tops: int) -> TokenLogprobs:
    rank = random.choice((None, 1, 250_000))
    values = random.randbytes(4 * tops)
    return TokenLogprobs(-random.random() * 1e3, random.randbytes(4 * tops), values, rank)


def test_each_is_as_it_came() -> None:
    random = Random(0)
    found = [some(random, random.choice((0, 1, 5, 21))) for _ in range(200)]
    packed = PackedLogprobs(found[:150])
    packed.extend(found[150:])
    assert [packed[at] for at in range(len(packed))] == list(packed) == found
    assert packed[3:5] == found[3:5]
    assert packed[-1] == found[-1]
    assert packed.nbytes == sum(map(packed_bytes, found))


def test_they_take_less_than_what_brings_them() -> None:
    random = Random(0)
    for tops in (0, 1, 20):
        found = [some(random, tops) for _ in range(1000)]
        brought = sum(
            sys.getsizeof(one) + sum(map(sys.getsizeof, (one.chosen, one.top_ids, one.top_values)))
            for one in found
        )
        packed = PackedLogprobs(found)
        assert packed.nbytes < brought / 1.5
        assert len(packed) == 1000
