"""The prefix cache: which blocks a sequence may read, which it may write, and who gives way.

Everything is decided before anything is changed, so an answer of "not now" leaves no trace.
One thread owns it; there are no locks and no clock (`now` is float seconds, monotonic).

Below the device there may be other tiers. Copies between tiers take their time: what is to be
copied is fetched with `take_plan`, done by others, and reported to `settle`. A lease whose prefix
is on its way is not `ready`, and holds up nobody else.

Knows: block ids, token ids, namespaces, owners. Does not know: what is in a block, or how it is
copied. A copy within the device is returned in the lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prefix_cache.ascent import Ascent, Whereabouts, whereabouts
from prefix_cache.commit import Committer
from prefix_cache.errors import LeaseError
from prefix_cache.eviction import EvictionPolicy, LeastRecentlyUsed
from prefix_cache.hashing import Digest, TokenIds, xxh3_128_digest
from prefix_cache.holds import Holds
from prefix_cache.invariants import check
from prefix_cache.lease import Lease
from prefix_cache.leasing import Leasing
from prefix_cache.namespace import Namespace, NamespacePath
from prefix_cache.occupancy import PoolUse, TierUse
from prefix_cache.owners import OwnerUse
from prefix_cache.pruning import Pruning
from prefix_cache.quota import Quota
from prefix_cache.quotas import Quotas
from prefix_cache.readership import Readership
from prefix_cache.restart import Restart
from prefix_cache.shelf import Tiers
from prefix_cache.supply import Supply
from prefix_cache.traffic import Reason
from prefix_cache.transit import Outcome, Transit
from prefix_cache.tree import RadixTree
from storage.move import DEVICE_TIER, DISK_TIER, Move, Plan, Tier

DEVICE_ONLY = Tiers()


class PrefixCache:
    """A radix tree, a free list and the leases on both."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        policy: EvictionPolicy | None = None,
        digest: Digest = xxh3_128_digest,
        tiers: Tiers = DEVICE_ONLY,
    ) -> None:
        """`digest` makes the keys of generated blocks; give the one that made the prompts'."""
        self.block_size = block_size
        self._tree = RadixTree(block_size)
        self._holds = Holds(self._tree, policy or LeastRecentlyUsed(), tiers.present())
        self._transit = Transit()
        self._supply = Supply(num_blocks, self._holds, tiers, self._transit)
        self.traffic = self._supply.losses.traffic  # what has gone between the tiers so far
        self.eviction_log = self._supply.losses.eviction_log  # between different owners
        self.quotas = Quotas(self._holds, self._supply)
        self._ascent = Ascent(self._holds, self._supply, self._transit)
        self.readership = Readership()  # to be read alone
        parts = (self._tree, self._holds, self._supply)
        self.restart = Restart(*parts, self._ascent, self._transit, digest)
        self._leasing = Leasing(*parts, self._ascent, self.readership)
        self._committer = Committer(*parts, digest, self.readership)
        self._pruning = Pruning(*parts)

    @property
    def num_nodes(self) -> int:
        """Nodes in the tree, the root not counted."""
        return self._tree.num_nodes

    @property
    def depth(self) -> int:
        """Nodes on the longest path. Walks the whole tree: for reports, not for every step."""
        return self._tree.depth

    def fits(self, num_tokens: int) -> bool:
        """Whether the whole pool, if it were empty, could hold `num_tokens` tokens."""
        return self.blocks_for(num_tokens) <= self._supply.allocator.total

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks `num_tokens` tokens take."""
        return -(-num_tokens // self.block_size)

    @property
    def num_copies(self) -> int:
        """Copies between tiers that were planned and not settled."""
        return len(self._transit)

    @property
    def plans_loads(self) -> bool:
        """Whether the next plan has copies to the device, which somebody waits for."""
        return self._transit.plans_loads

    def set_quota(self, owner: str, quota: Quota) -> None:
        """Set `owner`'s share of each tier; from the first call on every owner has a quota.

        Raises ValueError for an owner that is outside of quotas.
        """
        self.quotas.set(owner, quota)

    def match_length(self, path: NamespacePath, token_ids: TokenIds) -> int:
        """Return how many tokens, in whole blocks, are in the tree. Changes nothing."""
        return self._tree.walk(path, token_ids).num_blocks * self.block_size

    def locate(self, path: NamespacePath, token_ids: TokenIds) -> Whereabouts:
        """Return where the whole blocks lie that are in the tree. Changes nothing."""
        return whereabouts(self._tree.walk(path, token_ids))

    def acquire(
        self,
        path: NamespacePath,
        token_ids: TokenIds,
        *,
        owner: str,
        now: float,
        shares: bool = True,
        load_blocks: int | None = None,
        writer: str = "",
    ) -> Lease | None:
        """Lease blocks for all of `token_ids`; None: not now, and nothing has changed.

        The last token is never taken from the cache: it is left to be computed, for its logits.
        Blocks of the tree come first, then private ones. Into the first private block the lease's
        move copies the block of the tree that shares the most of the tokens that come next.

        Up to `load_blocks` (None: all) that lie lower are brought to the device, and the lease
        is not `ready` until they are there. Where room has to be made by copying blocks down,
        the answer is None and the copies are in the plan: ask again when they are settled.

        With `shares` false nothing is read from the tree, and commits do nothing.

        `writer` is a label, never interpreted: the lease counts the blocks that are written under
        it, and later leases tell by it whose blocks they were the first to find.
        """
        self.eviction_log.now = now
        known = token_ids[:-1] if shares else token_ids[:0]
        lease = self._leasing.give(path, token_ids, known, owner, now, load_blocks)
        if lease is not None:
            lease.shares, lease.writer = shares, writer
            self.quotas.keep(owner)
        return lease

    def pin(
        self, path: NamespacePath, token_ids: TokenIds, *, owner: str, now: float
    ) -> Lease | None:
        """Lease blocks that are all in the tree, to keep them there; None: they are not.

        `token_ids` are whole blocks, and every one of them has to be on the device. Such a lease
        has no private block. From now on the blocks are charged to `owner`.
        """
        return self._leasing.pin(path, token_ids, owner, now)

    def extend(self, lease: Lease, num_tokens: int, *, now: float) -> bool:
        """Make room for `num_tokens` in all; False: not now, and nothing has changed.

        A running sequence does not wait for copies: blocks that make room for it are dropped.
        Raises LeaseError.
        """
        lease.check_open()
        missing = self.blocks_for(num_tokens) - lease.num_blocks
        if missing <= 0:
            return True
        self.eviction_log.now = now
        is_longer = self._leasing.lengthen(lease, missing, now)
        if is_longer:
            self.quotas.keep(lease.owner)
        return is_longer

    def commit(
        self,
        lease: Lease,
        token_ids: TokenIds,
        num_computed: int,
        block_keys: bytes,
        *,
        now: float,
    ) -> None:
        """Put the whole blocks of `token_ids[:num_computed]` in the tree.

        `token_ids` are the sequence's from position 0, and their KV up to `num_computed` is in
        the lease's blocks. `block_keys` are the prompt's, 16 bytes a whole block; those of
        generated blocks are made here. Where the tree has an equal block, the lease keeps its
        own and goes on behind that one. Raises LeaseError.
        """
        lease.check_open()
        if not lease.ready:
            raise LeaseError("the lease's prefix is not on the device")
        whole = num_computed // self.block_size
        if num_computed > len(token_ids) or self.blocks_for(num_computed) > lease.num_blocks:
            raise LeaseError(f"{num_computed} tokens committed, {lease.num_blocks} blocks leased")
        if lease.shares and lease.node.attached and whole > lease.num_shared:
            tokens = token_ids[: whole * self.block_size]
            self._committer.commit(lease, tokens, block_keys, now=now)

    def release(self, lease: Lease, *, now: float) -> None:
        """Give everything back, once; what was committed stays in the tree. Raises LeaseError."""
        lease.check_open()
        self._leasing.take_back(lease, now)
        self.quotas.keep(lease.owner)

    def discard(self, lease: Lease, *, now: float) -> None:
        """Release, and forget each block this lease put in the tree and all that builds on it."""
        lease.check_open()
        if lease.first_added is not None:
            self._pruning.forget_from(lease.node, lease.first_added)
        self.release(lease, now=now)

    def flush(self, *, namespace: Namespace | None = None, owner: str | None = None) -> int:
        """Forget all blocks of a namespace, of an owner, of both together, or (None) of the cache.

        What hangs below a forgotten block goes with it. Leased blocks stay valid for their
        holders and are freed on release. Returns how many blocks the tree forgot.
        """
        return self._pruning.flush(namespace, owner)

    def take_plan(self) -> Plan:
        """Return the copies to be made, and what is to be erased, since the last time.

        Each move is to be reported to `settle`, once. First makes `Tiers.ahead` blocks free.
        """
        self.quotas.keep_again()
        self._supply.descent.make_ahead()
        return self._transit.take_plan()

    def settle(
        self, done: Iterable[Move] = (), failed: Iterable[Move] = (), lost: Iterable[Move] = ()
    ) -> None:
        """Apply how moves of a plan ended. Raises UnknownMove for one that is not under way.

        `failed`: the block stays where it was. `lost`: the copy that was to be read is no good, so
        the block is forgotten, with all that builds on it.
        """
        if done:
            self._settle(done, Outcome.DONE)
        if failed:
            self._settle(failed, Outcome.FAILED)
        if lost:
            self._settle(lost, Outcome.LOST)

    def promise(self, moves: Sequence[Move]) -> None:
        """Note that these moves under way will not fail, and that steps wait for them themselves.

        Leases that waited for nothing else are ready. Each move is to be settled all the same.
        """
        for shipment in self._transit.shipments_of(moves):
            if shipment.target is DEVICE_TIER:
                self._ascent.promise(shipment)

    def _settle(self, moves: Iterable[Move], outcome: Outcome) -> None:
        for shipment in self._transit.end(moves, outcome):
            way = self._ascent if shipment.target is DEVICE_TIER else self._supply.landing
            gone = way.settle(shipment)
            if gone:
                self._pruning.forget_all(gone, Reason.LOST)

    def forget_disk(self) -> int:
        """Forget all copies on disk: its file was emptied or is gone.

        Blocks that lie nowhere else leave the tree, with all that builds on them; those leased or
        on their way to the device stay with their holders. Moves under way to disk count as failed,
        whatever is reported of them; each still has to be settled. Returns how many blocks the tree
        forgot.
        """
        self._transit.void(DISK_TIER)
        gone = self._pruning.forget_all(self.restart.on_disk_alone(), Reason.TIER_GONE)
        if DISK_TIER in self._supply.shelves:
            self.restart.forget_copies()
        return gone

    def pool(self) -> PoolUse:
        """Return the use of the pool now."""
        return self._supply.pool()

    def lower_tiers(self) -> dict[Tier, TierUse]:
        """Return the use of the tiers below the device that are there."""
        return self._supply.lower_tiers()

    def owners(self) -> dict[str, OwnerUse]:
        """Return what each owner holds, took from others and lost."""
        return self._supply.books.by_owner()

    def check_invariants(self) -> None:
        """Recompute every count from scratch; raise InvariantBroken where one differs."""
        check(self._tree, self._holds, self._supply, self._transit, self._leasing.leases)
