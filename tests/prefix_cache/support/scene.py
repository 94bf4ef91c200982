"""A cache with a simulated device memory, so that tests can read blocks.

The KV of a token depends on all tokens before it, as with a model (`Scene.kv`). A slot with the
past of another sequence or namespace therefore differs from a right one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prefix_cache.cache import PrefixCache
from prefix_cache.hashing import Digest, TokenIds, block_keys, xxh3_128_digest
from prefix_cache.leases.lease import Lease
from prefix_cache.namespace import Namespace, NamespacePath
from prefix_cache.tiers.pruning import Pruning
from storage.move import Move, Tier


def tokens(*ids: int) -> TokenIds:
    return np.array(ids, dtype=np.int32)


def namespace(name: str) -> Namespace:
    return Namespace(name.encode().ljust(16, b"."))


def path(*names: str, length: int = 1) -> NamespacePath:
    """Make a path through the named namespaces, each `length` blocks long except the last, which
    has no end.
    """
    return NamespacePath(tuple((i * length, namespace(name)) for i, name in enumerate(names)))


def finished(pruning: Pruning | None) -> int | None:
    """Do a pruning to its end; return the number of forgotten blocks, or None if there is none."""
    return None if pruning is None else pruning.finish()


class ConstantDigest:
    """A hash function whose results are all equal, the worst possible."""

    def __call__(self, data: bytes) -> bytes:
        return b"same for all...!"


class Scene:
    """A scene that drives a PrefixCache as the engine does; every call is one tick later."""

    def __init__(
        self, num_blocks: int, block_size: int = 4, digest: Digest = xxh3_128_digest
    ) -> None:
        self.cache = PrefixCache(num_blocks=num_blocks, block_size=block_size, digest=digest)
        self.block_size = block_size
        self.digest = digest
        self.memory: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.now = 0.0
        self._unmoved: list[Move] = []

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def acquire(
        self,
        where: NamespacePath,
        ids: TokenIds,
        owner: str = "me",
        *,
        shares: bool = True,
        writer: str = "",
    ) -> Lease | None:
        now = self.tick()
        lease = self.cache.acquire(where, ids, owner=owner, now=now, shares=shares, writer=writer)
        if lease is not None:
            self._unmoved.extend(lease.moves)
        return lease

    def must_acquire(
        self,
        where: NamespacePath,
        ids: TokenIds,
        owner: str = "me",
        *,
        shares: bool = True,
        writer: str = "",
    ) -> Lease:
        lease = self.acquire(where, ids, owner, shares=shares, writer=writer)
        assert lease is not None
        return lease

    def move(self) -> None:
        """Do the copies requested since the last call, in order."""
        for move in self._unmoved:
            assert move.source_tier is move.target_tier is Tier.DEVICE
            self.memory[move.target] = list(self.memory[move.source])
        self._unmoved.clear()

    def compute(self, lease: Lease, ids: TokenIds, start: int, end: int) -> None:
        """Write the KV of tokens [start, end); check that the KV before it exists."""
        self.move()
        kv = self.kv(lease.path, ids)
        assert self.read(lease, start) == kv[:start]
        for at in range(start, end):
            self.memory[lease.blocks[at // self.block_size]][at % self.block_size] = kv[at]

    def read(self, lease: Lease, length: int) -> list[int | None]:
        """Return the contents of the lease's first `length` slots."""
        size = self.block_size
        return [self.memory[lease.blocks[at // size]][at % size] for at in range(length)]

    def kv(self, where: NamespacePath, ids: TokenIds | Sequence[int]) -> list[int]:
        """Return the right contents of each token's slot."""
        values, past = [], 0
        for at, token in enumerate(ids):
            past = hash((past, int(token), where.at(at // self.block_size)))
            values.append(past)
        return values

    def keys(self, where: NamespacePath, ids: TokenIds) -> bytes:
        return block_keys(where, ids, self.block_size, digest=self.digest)

    def commit(self, lease: Lease, ids: TokenIds, computed: int | None = None) -> None:
        done = len(ids) if computed is None else computed
        self.cache.commit(lease, ids, done, self.keys(lease.path, ids), now=self.tick())

    def start(
        self, where: NamespacePath, ids: TokenIds, owner: str = "me", *, writer: str = ""
    ) -> Lease:
        """Acquire, compute and commit all of `ids`."""
        lease = self.must_acquire(where, ids, owner, writer=writer)
        self.compute(lease, ids, lease.cached_tokens, len(ids))
        self.commit(lease, ids)
        return lease

    def run(self, where: NamespacePath, ids: TokenIds, owner: str = "me") -> int:
        """Run a whole request; return its number of cached tokens."""
        lease = self.start(where, ids, owner)
        self.release(lease)
        return lease.cached_tokens

    def release(self, lease: Lease) -> None:
        self.cache.release(lease, now=self.tick())

    def discard(self, lease: Lease) -> None:
        self.cache.discard(lease, now=self.tick())

    def matches(self, where: NamespacePath, ids: TokenIds) -> int:
        return self.cache.tree.match(where, ids).found.total * self.cache.block_size
