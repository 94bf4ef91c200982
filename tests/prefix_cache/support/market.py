"""Owners who share a cache, each with its own prompts, in a series of requests.

Copies between tiers end as soon as they are planned. A block is one token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from prefix_cache.cache import PrefixCache
from prefix_cache.eviction.eviction_policy import EvictionPolicy
from prefix_cache.eviction.shares import Quota
from prefix_cache.hashing import TokenIds, block_keys
from prefix_cache.leases.lease import Lease
from prefix_cache.tiers.tier_pools import Tiers
from tests.prefix_cache.support.scene import path


@dataclass(frozen=True)
class Request:
    """A prompt of an owner; `pads` are unique tokens after it."""

    owner: str
    prompt: TokenIds


@dataclass(frozen=True)
class Sizes:
    """The sizes of a cache's tiers, in blocks."""

    device: int
    host: int = 0
    disk: int = 0

    def part(self, share: float) -> Sizes:
        """Return these sizes multiplied by `share`."""
        return Sizes(*(int(share * blocks) for blocks in (self.device, self.host, self.disk)))


class Market:
    """A cache, and the hits of each owner."""

    def __init__(
        self,
        sizes: Sizes,
        quotas: Mapping[str, Quota] | None = None,
        policy: EvictionPolicy | None = None,
    ) -> None:
        self.cache = PrefixCache(
            num_blocks=sizes.device,
            block_size=1,
            policy=policy,
            tiers=Tiers(sizes.host, sizes.disk, max_disk_writes=10_000),
        )
        for owner, quota in (quotas or {}).items():
            self.cache.quotas.set(owner, quota)
        self.asked: Counter[str] = Counter()
        self.found: Counter[str] = Counter()
        self.now = 0.0

    def begin(self, request: Request) -> Lease:
        """Lease a prompt, compute it, and complete the copies that it needs."""
        self.now += 1.0
        where, ids = path(request.owner), request.prompt
        for _ in range(64):
            lease = self.cache.acquire(where, ids, owner=request.owner, now=self.now)
            self.complete()
            if lease is not None:
                break
        assert lease is not None, "a request has to wait for ever"
        assert lease.ready
        self.asked[request.owner] += len(ids) - 1
        self.found[request.owner] += lease.cached_tokens
        keys = block_keys(where, ids, 1)
        self.cache.commit(lease, ids, len(ids), keys, now=self.now)
        return lease

    def serve(self, request: Request) -> int:
        """Serve a whole request; return its number of cached tokens."""
        lease = self.begin(request)
        self.cache.release(lease, now=self.now)
        self.complete()
        return lease.cached_tokens

    def serve_all(self, requests: Sequence[Request]) -> list[int]:
        """Serve requests one after the other."""
        return [self.serve(request) for request in requests]

    def complete(self) -> None:
        """Complete all copies successfully, until no more are planned."""
        while moves := self.cache.moves.take_plan().moves:
            self.cache.moves.complete(moves)

    def hit_rate(self, owner: str) -> float:
        """Return the owner's found tokens divided by the tokens that could have been found."""
        return self.found[owner] / self.asked[owner]

    def held(self, owner: str) -> int:
        """Return the number of the owner's blocks on the device."""
        return self.cache.capacity.owners()[owner].blocks_held


def prompt(*parts: int, length: int = 8) -> TokenIds:
    """Make a prompt that shares no prefix with prompts of other `parts`."""
    first = 0
    for part in parts:
        first = first * 4096 + part + 1
    return np.arange(length, dtype=np.int32) + first * 64


def flood(owner: str, count: int, *, begin: int = 0, length: int = 8) -> list[Request]:
    """Make prompts that are each requested only once."""
    return [Request(owner, prompt(begin + n, length=length)) for n in range(count)]


def conversations(
    random: Random, owner: str, count: int, *, topics: int, longest: int = 12
) -> list[Request]:
    """Draw prompts of various lengths, some of which come again, mostly the popular ones."""
    popular = [1.0 / (n + 1) for n in range(topics)]
    drawn = random.choices(range(topics), popular, k=count)
    return [Request(owner, prompt(n, length=random.randint(3, longest))) for n in drawn]


def mixed(random: Random, parts: Sequence[Sequence[Request]]) -> list[Request]:
    """Mix the requests of all owners at random, keeping each owner's order."""
    turns = [owner for owner, part in enumerate(parts) for _ in part]
    random.shuffle(turns)
    waiting = [iter(part) for part in parts]
    return [next(waiting[owner]) for owner in turns]
