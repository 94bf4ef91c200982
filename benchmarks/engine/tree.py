"""The time of prefix cache operations on a 32k-token prompt among 10,000 other prefixes.

    python -m benchmarks.engine.tree
    python -m benchmarks.engine.tree --num-tokens 2048 --policy value

Prints JSON lines in microseconds of CPU time (median and 99th percentile), so that other load does
not count. The last lines time whole requests for new prompts in a full pool, where every new block
evicts another block: without lower tiers, with a host tier to which blocks move while the request
waits, and with a host tier to which blocks move before the request. Copies are simulated and end at
once.
"""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time_ns
from typing import Annotated

import numpy as np
import typer

from benchmarks.record import emit
from prefix_cache.cache import PrefixCache
from prefix_cache.eviction.policies import policy_by_name
from prefix_cache.hashing import TokenIds, block_keys
from prefix_cache.leases.lease import Lease
from prefix_cache.names import PolicyName
from prefix_cache.namespace import Namespace, NamespacePath
from prefix_cache.tiers.tier_pools import Tiers
from prefix_cache.tree.match import PrefixMatch

BLOCK_SIZE = 16
EVICTIONS = 20
WAITING, TURNS = 16, 64
FILLING = 16
PATH = NamespacePath(((0, Namespace(b"published.......")), (64, Namespace(b"tenant.........."))))
Times = list[float]


class Bench:
    """A cache filled with other prompts, and a clock."""

    def __init__(self, *, prefixes: int, num_tokens: int, repeats: int) -> None:
        self.random = np.random.default_rng(7)
        self.num_tokens = num_tokens
        self.evicted_at_once = min(1000, 4 * prefixes // EVICTIONS)
        room = (WAITING + 4) * num_tokens // BLOCK_SIZE + repeats
        self.cache = PrefixCache(num_blocks=64 + 4 * prefixes + room, block_size=BLOCK_SIZE)
        self.now = 0.0
        self.system = self.draw(64 * BLOCK_SIZE)
        for index in range(prefixes):
            tail = self.draw(4 * BLOCK_SIZE)
            self.put(np.concatenate([self.system, tail]) if index % 2 else tail, owner="others")

    def draw(self, count: int) -> TokenIds:
        """Draw random tokens whose first block no other prompt has."""
        return self.random.integers(0, 150_000, count, dtype=np.int32)

    def prompt(self) -> TokenIds:
        """Create a long prompt that begins with the published prefix."""
        return np.concatenate([self.system, self.draw(self.num_tokens - len(self.system))])

    def acquire(self, ids: TokenIds, owner: str = "bench") -> Lease:
        """Lease blocks for the prompt `ids`, for which the cache always has room."""
        self.now += 1.0
        lease = self.cache.acquire(PATH, ids, owner=owner, now=self.now)
        if lease is None:
            raise RuntimeError("the pool is too small for this benchmark")
        return lease

    def acquire_and_release(self, ids: TokenIds) -> None:
        """Acquire and release a lease for a fully cached request."""
        self.cache.release(self.acquire(ids), now=self.now)

    def put(self, ids: TokenIds, owner: str = "bench") -> float:
        """Acquire, commit and release a request, and return the microseconds of the commit."""
        lease, keys = self.acquire(ids, owner), block_keys(PATH, ids, BLOCK_SIZE)
        took = micros(self.commit, lease, ids, keys)
        self.cache.release(lease, now=self.now)
        return took

    def commit(self, lease: Lease, ids: TokenIds, keys: bytes) -> None:
        """Commit all blocks of `ids` as computed."""
        self.cache.commit(lease, ids, len(ids), keys, now=self.now)

    def tidy(self) -> None:
        """Flush the prompts of the measurements, but not the other prompts."""
        self.cache.flush(owner="bench")


def micros(work: Callable[..., object], *arguments: object) -> float:
    """Return the time of one call in microseconds."""
    start = thread_time_ns()
    work(*arguments)
    return (thread_time_ns() - start) / 1000


def match(bench: Bench, repeats: int) -> Times:
    """Match a fully cached prompt."""
    ids = bench.prompt()
    bench.put(ids)
    return [micros(bench.cache.tree.match, PATH, ids) for _ in range(repeats)]


def admit(bench: Bench, repeats: int) -> Times:
    """Match 16 waiting prompts of 64 cached turns each, and lease the first of them."""
    prompts = [bench.prompt() for _ in range(WAITING)]
    for ids in prompts:
        for end in np.linspace(len(bench.system), len(ids), TURNS, dtype=int)[1:]:
            bench.put(np.concatenate([ids[:end], bench.draw(BLOCK_SIZE)]))
    matches: list[PrefixMatch | None] = [None] * WAITING
    known = (bench.num_tokens - 1) // BLOCK_SIZE

    def admit_one() -> None:
        for index, ids in enumerate(prompts):
            matches[index] = bench.cache.tree.match(PATH, ids, matches[index])
        match = bench.cache.tree.match(PATH, prompts[0], matches[0]).first(known)
        lease = bench.cache.acquire(PATH, prompts[0], owner="bench", now=bench.now, match=match)
        if lease is None:
            raise RuntimeError("the pool is too small for this benchmark")
        bench.cache.release(lease, now=bench.now)

    return [micros(admit_one) for _ in range(repeats)]


def acquire_and_release(bench: Bench, repeats: int) -> Times:
    """Match, lease and release a cached prompt, whose last block is copied."""
    ids = bench.prompt()
    bench.put(ids)
    return [micros(bench.acquire_and_release, ids) for _ in range(repeats)]


def hash_prompt(bench: Bench, repeats: int) -> Times:
    """Compute all block keys of a prompt, as the gateway does once per request."""
    ids = bench.prompt()
    return [micros(block_keys, PATH, ids, BLOCK_SIZE) for _ in range(repeats)]


def insert(bench: Bench, repeats: int) -> Times:
    """Commit a whole new prompt in one step."""
    times: Times = []
    for _ in range(repeats):
        times.append(bench.put(bench.prompt()))
        bench.tidy()
    return times


def commit_one_block(bench: Bench, repeats: int) -> Times:
    """Commit block after block to a long prompt, as a decode does."""
    ids = np.concatenate([bench.prompt(), bench.draw(repeats * BLOCK_SIZE)])
    prompt = ids[: bench.num_tokens]
    keys, lease = block_keys(PATH, prompt, BLOCK_SIZE), bench.acquire(prompt)
    bench.commit(lease, prompt, keys)
    times: Times = []
    for end in range(bench.num_tokens + BLOCK_SIZE, len(ids) + 1, BLOCK_SIZE):
        bench.cache.extend(lease, end, now=bench.now)
        times.append(micros(bench.commit, lease, ids[:end], keys))
    bench.cache.release(lease, now=bench.now)
    return times


def evict(bench: Bench, repeats: int) -> Times:
    """Acquire blocks when no block is free, which evicts other prompts of four blocks each."""
    bench.acquire(bench.draw(bench.cache.capacity.pool().free * BLOCK_SIZE))
    blocks = bench.evicted_at_once
    prompts = [bench.draw(blocks * BLOCK_SIZE) for _ in range(repeats)]
    times = [micros(bench.acquire, ids) for ids in prompts]
    if bench.cache.capacity.owners()["others"].evictions_suffered != blocks * repeats:
        raise RuntimeError("this measured something other than eviction")
    return times


def under_pressure(
    bench: Bench, repeats: int, policy: PolicyName, *, host: bool, ahead: bool
) -> Times:
    """Serve new prompts in a full pool that holds four prompts.

    Acquire, commit and release of each prompt are timed, with plans of moves and their completion.
    """
    blocks = bench.num_tokens // BLOCK_SIZE + 1
    cache = PrefixCache(
        num_blocks=4 * blocks,
        block_size=BLOCK_SIZE,
        policy=policy_by_name(policy),
        tiers=Tiers(host_blocks=8 * blocks if host else 0, ahead=blocks if ahead else 0),
    )

    def serve(ids: TokenIds, keys: bytes, now: float) -> None:
        lease = None
        while lease is None:
            lease = cache.acquire(PATH, ids, owner="bench", now=now)
            cache.moves.complete(done=cache.moves.take_plan().moves)
        cache.commit(lease, ids, len(ids), keys, now=now)
        cache.release(lease, now=now)

    prompts = [bench.draw(bench.num_tokens) for _ in range(repeats + FILLING)]
    keyed = [(ids, block_keys(PATH, ids, BLOCK_SIZE)) for ids in prompts]
    times = [micros(serve, ids, keys, float(now)) for now, (ids, keys) in enumerate(keyed, 1)]
    return times[FILLING:]


MEASUREMENTS: dict[str, tuple[Callable[[Bench, int], Times], int]] = {
    "match, hot": (match, 500),
    "acquire + release, hot": (acquire_and_release, 500),
    "16 found again, one acquired and released": (admit, 200),
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
    """Fill the cache, measure the operations, print the results."""
    bench = Bench(prefixes=prefixes, num_tokens=num_tokens, repeats=500)
    emit("the tree", num_tokens=num_tokens, nodes=bench.cache.tree.num_nodes)
    for name, (measure, repeats) in MEASUREMENTS.items():
        _emit(name.format(evicted=bench.evicted_at_once), measure(bench, repeats))
        bench.tidy()
    for name, (host, ahead) in PRESSURES.items():
        _emit(name, under_pressure(bench, 200, policy, host=host, ahead=ahead))


def _emit(name: str, times: Times) -> None:
    p50, p99 = np.percentile(times, (50, 99))
    emit(name, p50_us=p50, p99_us=p99)


if __name__ == "__main__":
    typer.run(main)
