"""How long the prefix cache takes for a 32k-token prompt, with 10,000 other prefixes in it.

    python -m benchmarks.tree
    python -m benchmarks.tree --num-tokens 2048 --policy value

print a table and one JSON line, in microseconds of CPU time (median and 99th percentile), so that
other load does not count. The last rows are whole requests for new prompts in a full pool, where
every new block evicts another: without lower tiers, with room made while the request waits, and
with room made ahead. Copies cost nothing here and end at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from time import thread_time_ns
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from prefix_cache.cache import PrefixCache
from prefix_cache.hashing import TokenIds, block_keys
from prefix_cache.lease import Lease
from prefix_cache.namespace import Namespace, NamespacePath
from prefix_cache.policies import by_name
from prefix_cache.policy_name import PolicyName
from prefix_cache.shelf import Tiers

BLOCK_SIZE = 16
EVICTIONS = 20
PATH = NamespacePath(((0, Namespace(b"published.......")), (64, Namespace(b"tenant.........."))))
Times = list[float]


class Bench:
    """A cache filled with other prompts, and a clock."""

    def __init__(self, *, prefixes: int, num_tokens: int, repeats: int) -> None:
        self.random = np.random.default_rng(7)
        self.num_tokens = num_tokens
        self.evicted_at_once = min(1000, 4 * prefixes // EVICTIONS)
        room = 2 * num_tokens // BLOCK_SIZE + repeats
        self.cache = PrefixCache(num_blocks=64 + 4 * prefixes + room, block_size=BLOCK_SIZE)
        self.now = 0.0
        self.system = self.draw(64 * BLOCK_SIZE)  # published, in front of half of the prompts
        for index in range(prefixes):
            tail = self.draw(4 * BLOCK_SIZE)
            self.put(np.concatenate([self.system, tail]) if index % 2 else tail, owner="others")

    def draw(self, count: int) -> TokenIds:
        """Random tokens; a first block no other prompt has."""
        return self.random.integers(0, 150_000, count, dtype=np.int32)

    def prompt(self) -> TokenIds:
        """A new long prompt behind the published prefix."""
        return np.concatenate([self.system, self.draw(self.num_tokens - len(self.system))])

    def acquire(self, ids: TokenIds, owner: str = "bench") -> Lease:
        """Lease blocks for `ids`; there always are enough."""
        self.now += 1.0
        lease = self.cache.acquire(PATH, ids, owner=owner, now=self.now)
        if lease is None:
            raise RuntimeError("the pool is too small for this benchmark")
        return lease

    def commit(self, lease: Lease, ids: TokenIds, keys: bytes) -> None:
        """All of `ids` is computed."""
        self.cache.commit(lease, ids, len(ids), keys, now=self.now)

    def release(self, lease: Lease) -> None:
        """The sequence is done."""
        self.cache.release(lease, now=self.now)

    def acquire_and_release(self, ids: TokenIds) -> None:
        """The cache's part of a request that finds everything."""
        self.release(self.acquire(ids))

    def put(self, ids: TokenIds, owner: str = "bench") -> None:
        """A whole request."""
        lease = self.acquire(ids, owner)
        self.commit(lease, ids, block_keys(PATH, ids, BLOCK_SIZE))
        self.release(lease)

    def tidy(self) -> None:
        """Leave the others alone in the cache."""
        self.cache.flush(owner="bench")


def micros(work: Callable[..., object], *arguments: object) -> float:
    """Time one call, in microseconds."""
    start = thread_time_ns()
    work(*arguments)
    return (thread_time_ns() - start) / 1000


def match(bench: Bench, repeats: int) -> Times:
    """Find all of a prompt that is there."""
    ids = bench.prompt()
    bench.put(ids)
    return [micros(bench.cache.match_length, PATH, ids) for _ in range(repeats)]


def acquire_and_release(bench: Bench, repeats: int) -> Times:
    """Find, hold and let go of a prompt that is there; its last block is copied."""
    ids = bench.prompt()
    bench.put(ids)
    return [micros(bench.acquire_and_release, ids) for _ in range(repeats)]


def hash_prompt(bench: Bench, repeats: int) -> Times:
    """Make all keys of a prompt, which the gateway does once."""
    ids = bench.prompt()
    return [micros(block_keys, PATH, ids, BLOCK_SIZE) for _ in range(repeats)]


def insert(bench: Bench, repeats: int) -> Times:
    """Commit a whole new prompt in one step."""
    times: Times = []
    for _ in range(repeats):
        ids = bench.prompt()
        keys, lease = block_keys(PATH, ids, BLOCK_SIZE), bench.acquire(ids)
        times.append(micros(bench.commit, lease, ids, keys))
        bench.release(lease)
        bench.tidy()
    return times


def commit_one_block(bench: Bench, repeats: int) -> Times:
    """Fill one block after another behind a long prompt, as generating does."""
    ids = np.concatenate([bench.prompt(), bench.draw(repeats * BLOCK_SIZE)])
    prompt = ids[: bench.num_tokens]
    keys, lease = block_keys(PATH, prompt, BLOCK_SIZE), bench.acquire(prompt)
    bench.commit(lease, prompt, keys)
    times: Times = []
    for end in range(bench.num_tokens + BLOCK_SIZE, len(ids) + 1, BLOCK_SIZE):
        bench.cache.extend(lease, end, now=bench.now)
        times.append(micros(bench.commit, lease, ids[:end], keys))
    bench.release(lease)
    return times


def evict(bench: Bench, repeats: int) -> Times:
    """Acquire blocks when none is free, from others' prompts of four blocks each."""
    bench.acquire(bench.draw(bench.cache.pool().free * BLOCK_SIZE))
    blocks = bench.evicted_at_once
    prompts = [bench.draw(blocks * BLOCK_SIZE) for _ in range(repeats)]
    times = [micros(bench.acquire, ids) for ids in prompts]
    if bench.cache.owners()["others"].evictions_suffered != blocks * repeats:
        raise RuntimeError("this measured something other than eviction")
    return times


class Pressure:
    """A full pool that holds four prompts, and whole requests for ever new ones."""

    def __init__(self, bench: Bench, *, host: bool, ahead: bool, policy: str) -> None:
        self._bench = bench
        blocks = bench.num_tokens // BLOCK_SIZE + 1
        lower = 8 * blocks if host else 0
        self._cache = PrefixCache(
            num_blocks=4 * blocks,
            block_size=BLOCK_SIZE,
            policy=by_name(policy, BLOCK_SIZE),
            tiers=Tiers(host_blocks=lower, ahead=blocks if ahead else 0),
        )
        self._now = 0.0

    def times(self, repeats: int) -> Times:
        """Each request's acquire, commit and release, the plans and what settles them."""
        prompts = [self._bench.draw(self._bench.num_tokens) for _ in range(repeats + 16)]
        keyed = [(ids, block_keys(PATH, ids, BLOCK_SIZE)) for ids in prompts]
        times = [micros(self._serve, ids, keys) for ids, keys in keyed]
        return times[16:]  # when the tiers are full

    def _serve(self, ids: TokenIds, keys: bytes) -> None:
        self._now += 1.0
        lease = None
        while lease is None:
            lease = self._cache.acquire(PATH, ids, owner="bench", now=self._now)
            self._cache.settle(done=self._cache.take_plan().moves)
        self._cache.commit(lease, ids, len(ids), keys, now=self._now)
        self._cache.release(lease, now=self._now)


MEASUREMENTS: dict[str, tuple[Callable[[Bench, int], Times], int]] = {
    "match, hot": (match, 500),
    "acquire + release, hot": (acquire_and_release, 500),
    "block_keys": (hash_prompt, 100),
    "insert (commit of the whole prompt)": (insert, 100),
    "commit of one block": (commit_one_block, 500),
    "acquire that evicts {evicted} blocks": (evict, EVICTIONS),
}


PRESSURES = {
    "request in a full pool, no tiers": (False, False),
    "request in a full pool, all goes to the host": (True, False),
    "request in a full pool, room made ahead": (True, True),
}


def main(
    prefixes: Annotated[int, typer.Option(min=10, help="Other prompts in the tree.")] = 10_000,
    num_tokens: Annotated[
        int, typer.Option(min=1040, help="Of the prompt; 1024 are published.")
    ] = 32_768,
    policy: Annotated[PolicyName, typer.Option(help="Of the full pool.")] = "lru",
) -> None:
    """Fill, measure, print."""
    bench = Bench(prefixes=prefixes, num_tokens=num_tokens, repeats=500)
    nodes = bench.cache.num_nodes
    table = Table("what", "p50 µs", "p99 µs", title=f"{num_tokens} tokens, {nodes} nodes beside")
    medians: dict[str, float] = {}
    rows: dict[str, Times] = {}
    for name, (measure, repeats) in MEASUREMENTS.items():
        rows[name.format(evicted=bench.evicted_at_once)] = measure(bench, repeats)
        bench.tidy()
    for name, (host, ahead) in PRESSURES.items():
        rows[name] = Pressure(bench, host=host, ahead=ahead, policy=policy).times(200)
    for name, times in rows.items():
        p50, p99 = np.percentile(times, (50, 99))
        table.add_row(name, f"{p50:.1f}", f"{p99:.1f}")
        medians[name] = round(float(p50), 1)
    Console().print(table)
    print(json.dumps({"num_tokens": num_tokens, "nodes": nodes, "p50_us": medians}))


if __name__ == "__main__":
    typer.run(main)
