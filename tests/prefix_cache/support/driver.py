"""Random operations on a cache and its oracle, compared after each operation."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np

from prefix_cache.hashing import Digest, TokenIds, xxh3_128_digest
from prefix_cache.leases.lease import Lease
from prefix_cache.namespace import NamespacePath
from prefix_cache.tree.node import Node
from tests.prefix_cache.support.followed import FollowedPrompts
from tests.prefix_cache.support.oracle import Chain, Held, Oracle
from tests.prefix_cache.support.scene import Scene, namespace, path

PATHS = (
    path("pub", "tenant a"),
    path("pub", "tenant b"),
    path("pub", "group", "tenant a"),
    path("tenant a"),
    path("tenant b"),
)
OWNERS = ("anna", "ben", "cleo")


@dataclass(eq=False)
class Running:
    """A running sequence."""

    path: NamespacePath
    ids: TokenIds
    computed: int
    lease: Lease
    held: Held


class Driver:
    def __init__(
        self,
        seed: int,
        *,
        num_blocks: int,
        block_size: int,
        max_tokens: int,
        digest: Digest = xxh3_128_digest,
        check_every: int = 1,
    ) -> None:
        """Make a cache and its oracle; `check_every` is the number of operations between complete
        checks.
        """
        self.check_every = check_every
        self.random = Random(seed)
        self.scene = Scene(num_blocks, block_size, digest)
        self.oracle = Oracle(num_blocks, block_size)
        self.max_tokens = max_tokens
        self.running: list[Running] = []
        self.hits = self.partial_hits = self.refused = self.duplicates = self.detached = 0
        self.marked: dict[str, dict[bytes, Chain]] = {owner: {} for owner in OWNERS}
        self.lapsed = 0
        self.waiting = FollowedPrompts(Random(seed))

    def run(self, operations: int) -> None:
        for count in range(operations):
            self.step()
            self.check()
            if count % self.check_every == 0:
                self.scene.cache.check_invariants()
                self.waiting.check(self.scene.cache)
            if count % 16 == 0:
                self.check_contents()
                self.check_marked()
        self.finish()

    def step(self) -> None:
        dice = self.random.random()
        if not self.running or dice < 0.22:
            self.acquire()
        elif dice < 0.27:
            self.retain(self.random.choice(self.running))
        elif dice < 0.85:
            self.advance(self.random.choice(self.running))
        elif dice < 0.97:
            self.release(self.random.choice(self.running))
        elif dice < 0.99:
            self.discard(self.random.choice(self.running))
        else:
            self.flush()

    def draw(self) -> tuple[NamespacePath, TokenIds]:
        length = self.random.randint(1, self.max_tokens)
        ids = np.array([self.random.getrandbits(1) for _ in range(length)], dtype=np.int32)
        if self.running and self.random.random() < 0.4:  # makes long shared prefixes
            other = self.random.choice(self.running)
            same = min(length, len(other.ids))
            ids[:same] = other.ids[:same]
            return other.path, ids
        return self.random.choice(PATHS), ids

    def acquire(self) -> None:
        where, ids = self.draw()
        self.waiting.add(self.scene.cache, where, ids)
        owner, shares = self.random.choice(OWNERS), self.random.random() < 0.95
        oracle, known = self.oracle, ids[:-1] if shares else ids[:0]
        matched = oracle.match(where, known)
        missing = -(-len(ids) // oracle.block_size) - len(matched)
        possible = oracle.can_acquire(matched, missing)
        partial = oracle.partial(where, known, matched)
        to_evict = max(0, missing - oracle.free())

        lease = self.scene.acquire(where, ids, owner, shares=shares)
        assert (lease is not None) == possible
        if lease is None:
            self.refused += 1
            return
        whole = len(matched) * oracle.block_size
        assert lease.num_blocks == len(lease.blocks) == len(matched) + missing
        # which blocks are evicted beside the copy's source depends on nodes, which the oracle lacks
        if to_evict and lease.moves:
            oracle_chains = set(chains(self.scene))
            held = oracle.acquire(owner, matched, 0, self.scene.now, shares)
            oracle.evicted_to(oracle_chains, owner)
            held.own["private"] = missing
            oracle.seen.add(owner)
        else:
            oracle.evict(to_evict, owner, self.scene.now, beside=matched)
            held = oracle.acquire(owner, matched, missing, self.scene.now, shares)
            partial = 0 if to_evict else partial
        assert lease.cached_tokens == whole + partial
        assert len(lease.moves) == (partial > 0)
        self.hits += whole > 0
        self.partial_hits += partial > 0
        self.running.append(Running(where, ids, lease.cached_tokens, lease, held))

    def advance(self, sequence: Running) -> None:
        if sequence.computed == len(sequence.ids) and not self.generate(sequence):
            self.release(sequence)
            return
        left = len(sequence.ids) - sequence.computed
        end = sequence.computed + self.random.randint(1, left)
        self.scene.compute(sequence.lease, sequence.ids, sequence.computed, end)
        sequence.computed = end
        before = len(sequence.lease.duplicates)
        self.scene.commit(sequence.lease, sequence.ids, end)
        chain = self.oracle.chain(sequence.path, sequence.ids[:end])
        self.oracle.commit(sequence.held, chain, self.scene.now)
        self.duplicates += len(sequence.lease.duplicates) > before

    def generate(self, sequence: Running) -> bool:
        """Append some tokens to a sequence, after getting room for them if needed."""
        if len(sequence.ids) >= 2 * self.max_tokens:
            return False
        more = np.array([self.random.getrandbits(1) for _ in range(3)], dtype=np.int32)
        total = len(sequence.ids) + len(more)
        missing = max(0, -(-total // self.oracle.block_size) - sequence.lease.num_blocks)
        pool = self.oracle.pool()
        extended = self.scene.cache.extend(sequence.lease, total, now=self.scene.tick())
        assert extended == (missing <= pool.free + pool.evictable)
        if extended and missing:
            owner = sequence.held.owner
            self.oracle.evict(max(0, missing - pool.free), owner, self.scene.now)
            self.oracle.extend(sequence.held, missing, self.scene.now)
            self.oracle.seen.add(sequence.held.owner)
        if extended:
            sequence.ids = np.concatenate([sequence.ids, more])
        return extended

    def retain(self, sequence: Running) -> None:
        """Mark part of a computed prompt for some time."""
        marked = sequence.ids[: self.random.randint(1, sequence.computed or 1)]
        seconds, owner = float(self.random.randint(5, 80)), sequence.held.owner
        self.scene.cache.retain(sequence.lease, marked, seconds, now=self.scene.tick())
        if sequence.held.shares:
            chain = self.oracle.match(sequence.path, marked)
            first = sequence.path.spans[-1][0]  # the blocks before this are published
            self.oracle.retain(chain, owner, seconds, self.scene.now, first)
            while len(chain) > first and self.oracle.entries[chain].owner != owner:
                chain = chain[:-1]
            if len(chain) <= first:
                return
            keys = self.scene.keys(sequence.path, marked)
            self.marked[owner][keys[: 16 * len(chain)][-16:]] = chain

    def check_marked(self) -> None:
        """Check that the listed prefixes are the marked ones, with all blocks that are still
        retained.
        """
        for owner, marked in self.marked.items():
            found = self.scene.cache.retained.listed(owner, now=self.scene.now)
            assert {one.prefix_id for one in found} <= marked.keys()
            for one in found:
                chain = marked[one.prefix_id]
                here = [chain[: at + 1] in self.oracle.entries for at in range(len(chain))]
                assert one.num_blocks == len(chain)
                # blocks that were evicted and computed again are not retained
                assert sum(one.held.values()) <= sum(here)
            listed = {one.prefix_id for one in found}
            for key, chain in list(marked.items()):
                entry = self.oracle.entries.get(chain)
                if entry is not None and entry.owner != owner:
                    entry = None  # the block was evicted, and another owner added it later
                is_kept = entry is not None and entry.kept_until > self.scene.now
                assert key in listed or not chain or not is_kept
                if chain and is_kept:
                    [one] = [one for one in found if one.prefix_id == key]
                    assert sum(one.held.values()) == len(chain)
                if key not in listed:
                    del marked[key]
                    self.lapsed += 1

    def release(self, sequence: Running) -> None:
        self.running.remove(sequence)
        self.detached += sequence.held.detached
        self.scene.release(sequence.lease)
        self.oracle.release(sequence.held, self.scene.now)

    def discard(self, sequence: Running) -> None:
        self.running.remove(sequence)
        self.scene.discard(sequence.lease)
        self.oracle.discard(sequence.held, self.scene.now)

    def flush(self) -> None:
        names = ("pub", "group", "tenant a", "tenant b")
        where = namespace(self.random.choice(names)) if self.random.random() < 0.6 else None
        owner = self.random.choice(OWNERS) if self.random.random() < 0.6 else None
        forgotten = self.scene.cache.flush(namespace=where, owner=owner)
        assert forgotten == self.oracle.flush(where, owner)

    def finish(self) -> None:
        """End all sequences, and check that nothing has leaked."""
        for sequence in list(self.running):
            self.release(sequence)
            self.check()
        self.scene.cache.flush()
        self.scene.cache.check_invariants()
        assert self.scene.cache.capacity.pool().free == self.oracle.total
        assert self.scene.cache.tree.num_nodes == 0
        assert all(use.blocks_held == 0 for use in self.scene.cache.capacity.owners().values())

    def check(self) -> None:
        assert self.scene.cache.capacity.pool() == self.oracle.pool()
        where, ids = self.draw()
        matched = len(self.oracle.match(where, ids)) * self.oracle.block_size
        assert self.scene.matches(where, ids) == matched
        for sequence in self.running:
            assert sequence.lease.num_shared == len(sequence.held.chain)

    def check_contents(self) -> None:
        """Check that the tree has exactly the oracle's blocks, and that their contents are
        right.
        """
        self.scene.move()
        found = chains(self.scene)
        assert set(found) == set(self.oracle.entries)
        assert self.scene.cache.capacity.owners() == self.oracle.owners()
        for chain, block_id in found.items():
            ids = [token for _, block in chain for token in block]
            where = NamespacePath(tuple((i, ns) for i, (ns, _) in enumerate(chain)))
            expected = self.scene.kv(where, ids)[-self.oracle.block_size :]
            assert self.scene.memory[block_id] == expected


def chains(scene: Scene) -> dict[Chain, int]:
    """Return the block ids in the cache's tree, by the chain that ends with the block."""
    found: dict[Chain, int] = {}
    waiting: list[tuple[Node, Chain]] = [(scene.cache.tree.root, ())]
    while waiting:
        node, chain = waiting.pop()
        for index, block_id in enumerate(node.edge.block_ids):
            block = tuple(int(token) for token in node.edge.block(index))
            chain = (*chain, (node.namespace, block))
            found[chain] = int(block_id)
        waiting.extend((child, chain) for child in node.children.values())
    return found
