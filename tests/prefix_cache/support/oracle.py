"""The rules of the prefix cache in the plainest form: block by block, with sets and sorting.

A chain is the tuple of (namespace, tokens) of each block from position 0. A block in the tree is
identified by the chain that ends with it. There are no nodes, no splits, and no running counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefix_cache.eviction.quota_usage import OwnerUse
from prefix_cache.hashing import TokenIds
from prefix_cache.namespace import Namespace, NamespacePath
from prefix_cache.tiers.capacity import PoolUse

Chain = tuple[tuple[Namespace, tuple[int, ...]], ...]


@dataclass
class Entry:
    owner: str
    last_used: float
    kept_until: float = 0.0
    kept_for: float = 0.0


@dataclass(eq=False)
class Held:
    """The blocks of one lease."""

    owner: str
    shares: bool
    chain: Chain  # the shared blocks
    own: dict[str, int]  # numbers of private and of duplicate blocks
    attached: int  # number of leading blocks of the chain that are still in the tree
    first_added: int | None = None

    @property
    def detached(self) -> bool:
        return self.attached < len(self.chain)


class Oracle:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.total = num_blocks
        self.block_size = block_size
        self.entries: dict[Chain, Entry] = {}
        self.leases: list[Held] = []
        self.caused: dict[str, int] = {}
        self.suffered: dict[str, int] = {}
        self.seen: set[str] = set()
        # detached blocks: their owner, and the leases that hold them
        self._orphans: list[tuple[str, set[Held]]] = []

    # ---- queries

    def chain(self, where: NamespacePath, ids: TokenIds) -> Chain:
        size = self.block_size
        whole = len(ids) // size
        plain = [int(token) for token in ids]
        return tuple((where.at(i), tuple(plain[i * size : (i + 1) * size])) for i in range(whole))

    def match(self, where: NamespacePath, ids: TokenIds) -> Chain:
        chain = self.chain(where, ids)
        while chain and chain not in self.entries:
            chain = chain[:-1]
        return chain

    def partial(self, where: NamespacePath, ids: TokenIds, matched: Chain) -> int:
        """Return the most leading tokens of `ids` that any block after `matched` shares."""
        at = len(matched)
        wanted = [int(t) for t in ids[at * self.block_size : (at + 1) * self.block_size]]
        best = 0
        for chain in self.entries:
            if len(chain) == at + 1 and chain[:-1] == matched and chain[-1][0] == where.at(at):
                best = max(best, _common(wanted, chain[-1][1]))
        return best

    def held(self) -> set[Chain]:
        return {held.chain[: i + 1] for held in self.leases for i in range(held.attached)}

    def free(self) -> int:
        own = sum(sum(held.own.values()) for held in self.leases)
        return self.total - len(self.entries) - own - len(self._orphans)

    def pool(self) -> PoolUse:
        free, evictable = self.free(), len(self.entries) - len(self.held())
        return PoolUse(
            self.total, free, self.total - free, evictable, self.total - free - evictable
        )

    def owners(self) -> dict[str, OwnerUse]:
        held = dict.fromkeys(sorted(self.seen), 0)
        for entry in self.entries.values():
            held[entry.owner] += 1
        for owner, _ in self._orphans:
            held[owner] += 1
        for lease in self.leases:
            held[lease.owner] += lease.own["private"] + lease.own["duplicate"]
        return {
            owner: OwnerUse(blocks, self.caused.get(owner, 0), self.suffered.get(owner, 0))
            for owner, blocks in held.items()
        }

    # ---- changes

    def can_acquire(self, matched: Chain, missing: int) -> bool:
        held = self.held() | {matched[: i + 1] for i in range(len(matched))}
        return missing <= self.free() + len(self.entries) - len(held)

    def acquire(self, owner: str, matched: Chain, missing: int, now: float, shares: bool) -> Held:
        """Lease `matched` and `missing` private blocks; the caller has already evicted as many as
        needed.
        """
        held = Held(owner, shares, matched, {"private": missing, "duplicate": 0}, len(matched))
        self.leases.append(held)
        self.seen |= {owner} if missing else set()
        for at in range(len(matched)):
            entry = self.entries[matched[: at + 1]]
            if entry.kept_until > now:
                entry.kept_until = max(entry.kept_until, now + entry.kept_for)
        self.touch(held, now)
        return held

    def retain(self, chain: Chain, owner: str, seconds: float, now: float, first: int) -> None:
        """Retain the blocks of `chain` that belong to the owner, from block `first` on."""
        for at in range(len(chain)):
            entry = self.entries.get(chain[: at + 1])
            if entry is None:
                break
            if entry.owner == owner and at >= first:
                is_kept = entry.kept_until > now
                entry.kept_for = max(entry.kept_for, seconds) if is_kept else seconds
                entry.kept_until = max(entry.kept_until, now + entry.kept_for)

    def evict(self, count: int, owner: str, now: float, beside: Chain = ()) -> None:
        """Evict `count` blocks, each time the least recently used leaf.

        Retained leaves come after all others, with the shortest time first.
        """

        def order(chain: Chain) -> tuple[float, float, int]:
            entry = self.entries[chain]
            until = entry.kept_until if entry.kept_until > now else 0.0
            return (until, entry.last_used, -len(chain))

        keep = self.held() | {beside[: i + 1] for i in range(len(beside))}
        for _ in range(count):
            parents = {chain[:-1] for chain in self.entries}
            leaves = [c for c in self.entries if c not in parents and c not in keep]
            self._evicted(min(leaves, key=order), owner)

    def evicted_to(self, left: set[Chain], owner: str) -> None:
        """Accept the cache's choice of evicted blocks, after checking that it is allowed."""
        gone = set(self.entries) - left
        assert left <= set(self.entries)
        assert not gone & self.held()
        assert all(chain[:-1] in left for chain in left if len(chain) > 1)
        for chain in gone:
            self._evicted(chain, owner)

    def extend(self, held: Held, missing: int, now: float) -> None:
        held.own["private"] += missing
        self.touch(held, now)

    def commit(self, held: Held, chain: Chain, now: float) -> None:
        if held.detached or not held.shares or len(chain) <= len(held.chain):
            return
        for at in range(len(held.chain), len(chain)):
            block = chain[: at + 1]
            held.own["private"] -= 1
            if block in self.entries:
                held.own["duplicate"] += 1
            else:
                self.entries[block] = Entry(held.owner, now)
                held.first_added = at if held.first_added is None else held.first_added
        held.chain, held.attached = chain, len(chain)
        self.touch(held, now)

    def touch(self, held: Held, now: float) -> None:
        for at in range(held.attached):
            self.entries[held.chain[: at + 1]].last_used = now

    def release(self, held: Held, now: float) -> None:
        self.touch(held, now)
        self.leases.remove(held)
        for _, holders in self._orphans:
            holders.discard(held)
        self._orphans = [orphan for orphan in self._orphans if orphan[1]]

    def discard(self, held: Held, now: float) -> None:
        if held.first_added is not None and not held.detached:
            self.forget([held.chain[: held.first_added + 1]])
        self.release(held, now)

    def flush(self, namespace: Namespace | None, owner: str | None) -> int:
        return self.forget(
            [
                chain
                for chain, entry in self.entries.items()
                if namespace in (None, chain[-1][0]) and owner in (None, entry.owner)
            ]
        )

    def forget(self, tops: list[Chain]) -> int:
        """Remove these blocks and all blocks after them."""
        chosen = set(tops)
        gone = [
            chain
            for chain in self.entries
            if any(chain[: i + 1] in chosen for i in range(len(chain)))
        ]
        for chain in gone:
            holders = {h for h in self.leases if h.chain[: h.attached][: len(chain)] == chain}
            owner = self.entries.pop(chain).owner
            if holders:
                self._orphans.append((owner, holders))
        lost = set(gone)
        for held in self.leases:
            while held.attached and held.chain[: held.attached] in lost:
                held.attached -= 1
        return len(gone)

    def _evicted(self, chain: Chain, for_owner: str) -> None:
        of_owner = self.entries.pop(chain).owner
        self.caused[for_owner] = self.caused.get(for_owner, 0) + 1
        self.suffered[of_owner] = self.suffered.get(of_owner, 0) + 1


def _common(left: list[int], right: tuple[int, ...]) -> int:
    same = 0
    while same < min(len(left), len(right)) and left[same] == right[same]:
        same += 1
    return same
