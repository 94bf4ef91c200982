from __future__ import annotations

import random

from gateway.auth.ttl_cache import TtlCache
from tests.gateway.support.manual_clock import ManualClock


def a_cache(clock: ManualClock, max_entries: int = 3) -> TtlCache[str, int]:
    return TtlCache(5.0, clock, max_entries)


def test_an_entry_lives_for_its_time_and_no_longer() -> None:
    clock = ManualClock()
    cache = a_cache(clock)
    cache.put("a", 1)
    clock.advance(4.999)
    assert cache.get("a") == 1
    clock.advance(0.001)
    assert cache.get("a") is None
    assert len(cache) == 0


def test_reading_does_not_prolong_and_putting_again_does() -> None:
    clock = ManualClock()
    cache = a_cache(clock)
    cache.put("read", 1)
    cache.put("put", 1)
    clock.advance(3)
    assert cache.get("read") == 1
    cache.put("put", 2)
    clock.advance(3)
    assert cache.get("read") is None
    assert cache.get("put") == 2


def test_the_oldest_makes_room() -> None:
    cache = a_cache(ManualClock())
    for key in "abcd":
        cache.put(key, 1)
    assert [cache.get(key) for key in "abcd"] == [None, 1, 1, 1]
    cache.put("b", 2)  # makes "b" the newest entry
    cache.put("e", 1)
    assert [cache.get(key) for key in "bcde"] == [2, None, 1, 1]


def test_a_missing_and_a_cleared_entry_are_none() -> None:
    cache = a_cache(ManualClock())
    assert cache.get("a") is None
    cache.put("a", 1)
    cache.clear()
    assert cache.get("a") is None


def test_it_agrees_with_a_plain_model() -> None:
    rng = random.Random(3)
    clock = ManualClock()
    cache = a_cache(clock, max_entries=4)
    # plain copy of the cache's contents, with the oldest entry first
    entries: list[tuple[str, int, float]] = []
    for step in range(5_000):
        clock.advance(rng.choice([0.0, 0.0, 0.5, 2.0]))
        key = rng.choice("abcdefgh")
        if rng.random() < 0.5:
            cache.put(key, step)
            entries = [*(e for e in entries if e[0] != key), (key, step, clock.now + 5.0)][-4:]
        live = {k: value for k, value, deadline in entries if clock.now < deadline}
        assert cache.get(key) == live.get(key)
        entries = [e for e in entries if e[0] != key or clock.now < e[2]]
        assert len(cache) <= 4
