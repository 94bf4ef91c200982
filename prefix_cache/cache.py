"""The prefix cache: leases on KV blocks, and the eviction of blocks that no lease holds.

Every method decides everything before it changes anything. So a result that means "not now" leaves
the cache as it was. One thread owns the cache, which has no locks and no clock. `now` is monotonic
time in float seconds.

There may be slower tiers below the device. `moves` plans the copies between tiers. A lease is not
`ready` while its prefix is being loaded.

For a model with recurrent layers, a lease also has slots for recurrent states. The tree keeps some
of these states as state checkpoints (`leases.lease_states`). A lease begins at a checkpoint or at
position 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import partial

from prefix_cache.commit import Committer
from prefix_cache.errors import LeaseError
from prefix_cache.eviction.eviction_policy import EvictionPolicy, LeastRecentlyUsed
from prefix_cache.eviction.ref_counts import RefCounts
from prefix_cache.hashing import Digest, TokenIds, xxh3_128_digest
from prefix_cache.invariants.blocks import check
from prefix_cache.invariants.states import check_states
from prefix_cache.leases.lease import Lease
from prefix_cache.leases.leasing import Leasing
from prefix_cache.leases.loader import Loader
from prefix_cache.leases.retained_prefixes import RetainedPrefixes
from prefix_cache.leases.reuse_accounting import ReuseAccounting
from prefix_cache.leases.state_leasing import StateLeasing
from prefix_cache.namespace import NamespacePath
from prefix_cache.planned_moves import PlannedMoves
from prefix_cache.restart import Restart
from prefix_cache.tiers.capacity import Capacity
from prefix_cache.tiers.checkpoints import ANSWER_SLOTS
from prefix_cache.tiers.in_flight import InFlight
from prefix_cache.tiers.pruning import Pruning, nodes_in
from prefix_cache.tiers.quotas import Quotas
from prefix_cache.tiers.tier_pools import Tiers
from prefix_cache.tree.match import PrefixMatch
from prefix_cache.tree.survey import Survey
from prefix_cache.tree.tally import Tally
from prefix_cache.tree.tree import RadixTree

DEVICE_ONLY = Tiers()


class PrefixCache:
    """A radix tree of cached KV blocks, the pool of free slots, and the leases on blocks."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        policy: EvictionPolicy | None = None,
        digest: Digest = xxh3_128_digest,
        tiers: Tiers = DEVICE_ONLY,
        num_states: int = 0,
        max_running: int = 0,
        in_place: bool = False,
    ) -> None:
        """Create an empty cache.

        `digest` computes the keys of generated blocks. The same function must have computed the
        keys of the prompts' blocks. `num_states` is the number of device slots for recurrent
        states, of which slot 0 is never used. `max_running` is the number of leases for which state
        slots are reserved. With 0, half of the slots are reserved. `in_place` means that each
        recurrent state is the ring buffer of a window.
        """
        self.block_size = block_size
        self.tree = RadixTree(block_size, needs_state=num_states > 0)
        self.survey = Survey(self.tree)
        self.ref_counts = RefCounts(self.tree, policy or LeastRecentlyUsed(), tiers.present())
        self.in_flight = InFlight()
        self.capacity = Capacity(
            num_blocks, self.ref_counts, tiers, self.in_flight, num_states, max_running
        )
        self.checkpoints = self.capacity.checkpoints
        self.eviction_log = self.capacity.removals.eviction_log
        self.quotas = Quotas(self.ref_counts, self.capacity)
        self.retained = RetainedPrefixes(self.ref_counts, self.capacity.removals)
        loader = Loader(self.ref_counts, self.capacity, self.in_flight)
        self.reuse_accounting = ReuseAccounting()
        parts = self.ref_counts, self.capacity
        self.restart = Restart(*parts, loader, self.in_flight, digest)
        self.states = StateLeasing(self.ref_counts, self.capacity, in_place=in_place)
        self._leasing = Leasing(*parts, loader, self.reuse_accounting, self.states)
        self._committer = Committer(*parts, digest, self.reuse_accounting)
        self.moves = PlannedMoves(self.quotas, self.capacity, self.in_flight, loader, self.states)

    def fits(self, num_tokens: int) -> bool:
        """Return whether an empty pool would have room for `num_tokens` tokens."""
        return self.blocks_for(num_tokens) <= self.capacity.allocator.total

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks `num_tokens` tokens take."""
        return -(-num_tokens // self.block_size)

    def is_free_for(self, num_tokens: int) -> bool:
        """Return whether `num_tokens` uncached tokens would fit now without an eviction."""
        states = self.checkpoints.device.allocator if self.tree.needs_state else None
        has_states = states is None or states.num_free > ANSWER_SLOTS
        return has_states and self.blocks_for(num_tokens + 1) <= self.capacity.allocator.num_free

    def in_use(self) -> Counter[str]:
        """Count the device blocks that leases use, by the owner who is charged for them."""
        return self._leasing.in_use()

    def is_kept(self, owner: str) -> bool:
        """Return whether `owner` fits its partitions and none of its blocks is leaving a tier."""
        return self.quotas.is_kept(owner, self._leasing.is_busy)

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
        match: PrefixMatch | None = None,
    ) -> Lease | None:
        """Lease blocks for all of `token_ids`, or return None if there is no room now.

        The last token is always computed, because its logits are needed. Blocks of the tree come
        first, followed by private blocks. The first private block starts as a copy of the block in
        the tree that shares the most of the next tokens.

        Up to `load_blocks` blocks of lower tiers are copied to the device. None means all these
        blocks. The lease is `ready` once they have arrived. If blocks must first be copied down to
        make room, this plans the copies and returns None. The caller tries again when the copies
        are complete.

        If `shares` is false, nothing is read from the tree and nothing is committed to it.

        `writer` is an opaque label for the blocks that this lease writes. The first later lease
        that finds these blocks reports the label.

        `match` is the result of an earlier `tree.match` of these tokens.
        """
        self._at(now)
        if not self.is_kept(owner):
            return None
        known = token_ids[:-1] if shares else token_ids[:0]
        match = match if shares else None
        lease = self._leasing.give(path, token_ids, known, owner, now, load_blocks, match)
        if lease is not None:
            lease.shares, lease.writer = shares, writer
            self.quotas.keep(owner)
        return lease

    def pin(
        self, path: NamespacePath, token_ids: TokenIds, *, owner: str, now: float
    ) -> Lease | None:
        """Lease whole blocks so that they stay in the tree.

        Returns None unless all blocks of `token_ids` are on the device. The lease has no private
        block. From now on the blocks are charged to `owner`.
        """
        return self._leasing.pin(path, token_ids, owner, now)

    def read(
        self,
        path: NamespacePath,
        token_ids: TokenIds,
        *,
        owner: str,
        now: float,
        is_part: bool = False,
        with_state: bool = False,
    ) -> Lease | None:
        """Lease the prompt's leading blocks, as far as they are on the device, for reading.

        Returns None if the device has no such block. The lease has no private block, and counts as
        a use of its blocks. `is_part` means that the holder also has a main lease. Only main leases
        count as running when `owner` needs room. With `with_state`, the lease ends at the last
        state checkpoint on the device and includes it.
        """
        self._at(now)
        lease = self._leasing.read(path, token_ids, owner, now, with_state=with_state)
        if lease is not None:
            lease.is_part = is_part
        return lease

    def postpone(self, lease: Lease) -> int:
        """Cancel the lease's copy of a partial block, because its sequence does not start now.

        Returns the number of cached tokens that the lease still has.
        """
        lease.check_open()
        lease.moves, lease.cached_tokens = (), lease.num_shared * self.block_size
        return lease.cached_tokens

    def extend(self, lease: Lease, num_tokens: int, *, now: float) -> bool:
        """Extend the lease to `num_tokens` tokens, or return False if there is no room now.

        Cached blocks are dropped to make room, because a running sequence does not wait for copies.
        Raises LeaseError.
        """
        lease.check_open()
        missing = self.blocks_for(num_tokens) - lease.num_blocks
        if missing <= 0:
            return True
        self._at(now)
        is_longer = self._leasing.lengthen(lease, missing, now)
        if is_longer:
            self.quotas.keep(lease.owner)
        return is_longer

    def retain(self, lease: Lease, token_ids: TokenIds, seconds: float, *, now: float) -> None:
        """Retain blocks of `token_ids`: evict them after the other blocks of the lease's owner.

        Whole blocks from position 0 on are retained for `seconds`. Each use restarts this time.
        """
        self._at(now)
        lease.check_open()
        if lease.shares:
            self.retained.retain(lease.path, token_ids, lease.owner, seconds)
            self.states.refresh(lease.node)

    def commit(
        self,
        lease: Lease,
        token_ids: TokenIds,
        num_computed: int,
        block_keys: bytes,
        *,
        now: float,
        is_written: bool = True,
    ) -> None:
        """Commit the whole blocks of `token_ids[:num_computed]` to the tree.

        `token_ids` are the sequence's tokens from position 0. The KV of these tokens up to
        `num_computed` is in the lease's blocks. `block_keys` are the prompt's keys, 16 bytes for
        each whole block. Keys of generated blocks are computed here. If the tree already has an
        equal block, the lease keeps its own block and also holds the tree's block. Raises
        LeaseError.

        With `is_written` false, another cache computed the blocks. The blocks then do not count as
        written under the lease's label.
        """
        lease.check_open()
        if not lease.ready:
            raise LeaseError("the lease's prefix is not on the device")
        whole = num_computed // self.block_size
        if num_computed > len(token_ids) or self.blocks_for(num_computed) > lease.num_blocks:
            raise LeaseError(f"{num_computed} tokens committed, {lease.num_blocks} blocks leased")
        if lease.shares and lease.node.attached and whole > lease.num_shared:
            tokens = token_ids[: whole * self.block_size]
            self._committer.commit(lease, tokens, block_keys, now=now, is_written=is_written)
        self.states.committed(lease, num_computed)

    def keep_out(self, lease: Lease) -> None:
        """Stop sharing the lease: commit no more of its blocks, and keep none of its states.

        The lease stays valid.
        """
        lease.shares = False
        self.states.keep_out(lease)

    def release(self, lease: Lease, *, now: float) -> None:
        """Release the lease. Committed blocks stay in the tree. A second call raises LeaseError."""
        lease.check_open()
        self.states.end(lease)
        self._leasing.take_back(lease, now)
        self.quotas.keep(lease.owner)

    def discard(self, lease: Lease, *, now: float) -> None:
        """Release the lease and forget the blocks that it added to the tree.

        Blocks that follow the forgotten blocks in the tree are forgotten too.
        """
        lease.check_open()
        for node in self.states.forget(lease):
            self.capacity.removals.prune_from(node, node.end - 1)
        if lease.first_added is not None:
            self.capacity.removals.prune_from(lease.node, lease.first_added)
        self.release(lease, now=now)

    def flush(
        self,
        *,
        namespace: bytes | None = None,
        owner: str | None = None,
        tally: Tally | None = None,
    ) -> int:
        """Do a `pruning` from beginning to end. Return the number of forgotten blocks."""
        namespaces = None if namespace is None else (namespace,)
        return self.pruning(namespaces, owner, tally).finish()

    def pruning(
        self, namespaces: Collection[bytes] | None, owner: str | None, tally: Tally | None = None
    ) -> Pruning:
        """Begin to forget the KV blocks of an owner, of namespaces, or of both.

        With neither, all blocks are forgotten. With both, only the owner's blocks in these
        namespaces are forgotten. Each of `namespaces` stands for all that begin with these bytes.
        Blocks below a forgotten block are forgotten too. Leased blocks stay valid until their
        release. `tally` counts the forgotten copies.
        """
        if owner is not None and namespaces is None:
            self.retained.drop(owner)
        find = partial(nodes_in, self.tree, namespaces, owner)
        return Pruning(self.capacity.removals, find, tally)

    def _at(self, now: float) -> None:
        self.eviction_log.now = self.ref_counts.retention.now = now

    def check_invariants(self) -> None:
        """Recompute every count, and raise InvariantBroken if a count differs."""
        leases = self._leasing.leases
        check(self.tree, self.ref_counts, self.capacity, self.in_flight, leases)
        check_states(self.tree, self.capacity.checkpoints, leases, self.in_flight)
