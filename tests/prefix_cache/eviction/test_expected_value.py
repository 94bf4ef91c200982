"""Each policy's hits in the workload for which it is made, compared with plain LRU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from random import Random
from typing import get_args

import numpy as np
import pytest

from prefix_cache.cache import PrefixCache
from prefix_cache.eviction.eviction_policy import EvictionPolicy
from prefix_cache.eviction.expected_value import ExpectedValue, ReuseTable
from prefix_cache.eviction.policies import POLICIES, policy_by_name
from prefix_cache.hashing import ROOT_KEY, block_keys
from prefix_cache.names import PolicyName
from prefix_cache.tiers.tier_pools import Tiers
from storage.move import BlockRecord
from tests.doubles.gateway.keys import split_keys
from tests.prefix_cache.support.scene import path

BLOCKS = 64
HERE = path("a")
Prompt = Sequence[int]


class Counted:
    """A cache of one-token blocks that serves prompts one after the other."""

    def __init__(self, policy: EvictionPolicy, tiers: Tiers | None = None) -> None:
        self.cache = PrefixCache(
            num_blocks=BLOCKS, block_size=1, policy=policy, tiers=tiers or Tiers()
        )
        self.now = 0.0

    def ask(self, prompt: Prompt) -> int:
        """Serve a prompt and a unique last token; return the number of cached blocks."""
        self.now += 1.0
        ids = np.array([*prompt, -1], dtype=np.int32)
        lease = self.cache.acquire(HERE, ids, owner="me", now=self.now)
        while lease is None or not lease.ready:
            self.cache.moves.complete(done=self.cache.moves.take_plan().moves)
            if lease is None:
                lease = self.cache.acquire(HERE, ids, owner="me", now=self.now)
        cached = lease.cached_tokens
        self.cache.commit(lease, ids, len(prompt), block_keys(HERE, ids, 1), now=self.now)
        self.cache.release(lease, now=self.now)
        return cached

    def rate(self, prompts: Iterable[Prompt]) -> float:
        """Return cached blocks divided by requested blocks."""
        asked = cached = 0
        for prompt in prompts:
            cached += self.ask(prompt)
            asked += len(prompt)
        self.cache.check_invariants()
        return cached / asked


def prompt(number: int, blocks: int = 8) -> Prompt:
    return range(1000 * number, 1000 * number + blocks)


def skewed(random: Random, prompts: int, requests: int) -> Iterator[Prompt]:
    """Draw prompts: a few come often, many come once or twice."""
    for _ in range(requests):
        yield prompt(min(int(random.paretovariate(0.7)), prompts))


def with_scans(random: Random) -> Iterator[Prompt]:
    """Draw six prompts that come again; between them come more unique prompts than the cache
    holds.
    """
    once = 1000
    for _ in range(30):
        for number in random.sample(range(6), 6):
            yield prompt(number)
        for _ in range(10):
            once += 1
            yield prompt(once)


def loop(rounds: int) -> Iterator[Prompt]:
    """Repeat twelve prompts in turn, of which the cache holds eight: LRU always evicts the next
    one.
    """
    for _ in range(rounds):
        yield from (prompt(number) for number in range(12))


@pytest.mark.parametrize("name", POLICIES)
def test_prompts_that_all_fit_are_never_computed_twice(name: PolicyName) -> None:
    cache = Counted(policy_by_name(name))
    cache.rate(prompt(n) for n in range(6))
    assert cache.rate(prompt(n) for n in range(6)) == 1.0


def test_a_scan_does_not_push_out_what_comes_back() -> None:
    plain = Counted(policy_by_name("lru")).rate(with_scans(Random(1)))
    better = Counted(ExpectedValue()).rate(with_scans(Random(1)))
    assert plain < 0.05  # positive control: LRU, which remembers nothing, has almost no hits
    assert better > plain + 0.05


def test_skew_is_no_worse_than_with_lru() -> None:
    plain = Counted(policy_by_name("lru")).rate(skewed(Random(2), 200, 700))
    better = Counted(ExpectedValue()).rate(skewed(Random(2), 200, 700))
    assert 0.2 < plain < 0.9
    assert better > plain - 0.005


def test_in_a_loop_larger_than_the_cache_no_policy_falls_below_lru() -> None:
    rates = {name: Counted(policy_by_name(name)).rate(loop(10)) for name in POLICIES}
    assert rates["lru"] == 0.0
    assert min(rates.values()) == 0.0


@pytest.mark.parametrize("name", POLICIES)
def test_with_tiers_below_more_is_found_and_the_books_add_up(name: PolicyName) -> None:
    alone = Counted(policy_by_name(name)).rate(skewed(Random(3), 200, 250))
    tiers = Tiers(host_blocks=BLOCKS, disk_blocks=2 * BLOCKS, max_disk_writes=2 * BLOCKS)
    assert Counted(policy_by_name(name), tiers).rate(skewed(Random(3), 200, 250)) > alone


def test_blocks_that_return_keep_their_uses_from_before() -> None:
    cache = Counted(ExpectedValue())
    seen = []
    for start in (100, 200, 300):
        cache.ask(prompt(1))
        seen += [node.seen for node in cache.cache.tree.nodes() if node.edge.tokens[0] == 1000]
        cache.rate(prompt(n) for n in range(start, start + 20))
        assert cache.cache.tree.match(HERE, np.array(prompt(1), dtype=np.int32)).found.total == 0
    assert seen == [0, 1, 2]


def test_a_long_prompt_seen_once_goes_before_shorter_ones() -> None:
    rates = {}
    for policy in (ExpectedValue(), policy_by_name("lru")):
        cache = Counted(policy)
        cache.rate(prompt(n, 4) for n in range(6))
        cache.ask(prompt(50, 36))
        cache.rate(prompt(n, 4) for n in range(60, 70))
        rates[type(policy).__name__] = sum(cache.ask(prompt(n, 4)) for n in range(6))
    assert rates["ExpectedValue"] > rates["LeastRecentlyUsed"] == 0


def test_the_table_learns_the_chance_of_each_number_of_uses() -> None:
    table = ReuseTable(trust=10.0)
    before = table.chance(1)
    for _ in range(100):
        table.stamp(1, 10)
        table.stamp(2, 10)
        table.again(2, 9)
    assert table.chance(1) < 0.05 < before < 0.5 < table.chance(2)
    assert table.chance(2) == pytest.approx(0.9, abs=0.05)
    assert table.chance(9) == table.chance(6)


def test_the_blocks_counted_are_those_in_the_tree() -> None:
    policy = ExpectedValue()
    cache = Counted(policy)
    cache.rate(skewed(Random(4), 50, 200))
    assert policy.live == sum(len(node.edge) for node in cache.cache.tree.nodes())
    cache.cache.flush()
    assert policy.live == 0


def test_blocks_restored_from_disk_are_counted_with_their_uses() -> None:
    policy = ExpectedValue()
    ids = np.array([5, 6, 7], dtype=np.int32)
    keys = [b"", *split_keys(block_keys(HERE, ids, 1))]
    records = [
        (
            slot,
            BlockRecord(key, before or ROOT_KEY, HERE.at(0), "me", bytes([5 + slot, 0, 0, 0]), 3),
        )
        for slot, (before, key) in enumerate(pairwise(keys))
    ]
    cache = PrefixCache(num_blocks=4, block_size=1, policy=policy, tiers=Tiers(disk_blocks=4))
    assert cache.restart.restore(records, now=1.0) == 3
    (node,) = cache.tree.nodes()
    assert (policy.live, policy.clock, node.seen) == (3, 3, 3)
    assert node.priority > 3.0
    cache.check_invariants()
    cache.flush()
    assert policy.live == 0


def test_a_policy_is_made_anew_for_each_cache() -> None:
    assert isinstance(policy_by_name("value"), ExpectedValue)
    assert policy_by_name("value") is not policy_by_name("value")


def test_the_command_offers_every_policy_there_is() -> None:
    assert set(get_args(PolicyName)) == set(POLICIES)
