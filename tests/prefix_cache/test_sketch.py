"""The sketch counts, ages, and is never too low."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from prefix_cache.sketch import MAX_COUNT, FrequencySketch


def key(number: int) -> bytes:
    return Random(number).randbytes(16)


def test_a_key_never_seen_counts_nothing_and_one_seen_counts_once() -> None:
    sketch = FrequencySketch(64)
    sketch.add(key(1))
    assert (sketch.count(key(1)), sketch.count(key(2))) == (1, 0)


def test_many_keys_at_once_are_counted_each() -> None:
    sketch = FrequencySketch(1024)
    sketch.add(key(1) + key(2))
    sketch.add(key(2))
    assert [sketch.count(key(n)) for n in (1, 2, 3)] == [1, 2, 0]


def test_no_count_is_too_low_before_it_ages() -> None:
    random, sketch, truth = Random(5), FrequencySketch(256, sample=10**9), Counter[int]()
    for _ in range(2000):
        number = min(int(random.paretovariate(1.0)), 300)
        truth[number] += 1
        sketch.add(key(number))
    assert all(sketch.count(key(n)) >= min(times, MAX_COUNT) for n, times in truth.items())
    exact = sum(sketch.count(key(n)) == min(times, MAX_COUNT) for n, times in truth.items())
    assert exact > len(truth) // 2


def test_counts_are_halved_after_the_sample() -> None:
    sketch = FrequencySketch(64, sample=8)
    for _ in range(7):
        sketch.add(key(1))
    assert sketch.count(key(1)) == 7
    sketch.add(key(2))
    assert (sketch.count(key(1)), sketch.count(key(2))) == (3, 0)


def test_a_counter_stops_at_its_most() -> None:
    sketch = FrequencySketch(64)
    for _ in range(40):
        sketch.add(key(1))
    assert sketch.count(key(1)) == MAX_COUNT


@pytest.mark.parametrize("width", [0, -4, 3, 100])
def test_a_width_is_a_power_of_two(width: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        FrequencySketch(width)
    assert FrequencySketch(128).count(key(1)) == 0
