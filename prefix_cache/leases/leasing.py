"""The opening and closing of leases on KV blocks.

    0 ...... found ...... at.num_blocks ...... all tokens
    | held in the tree;  | private blocks, for which room     |
    | loaded if lower    | is made; the first may begin with  |
    |                    | a copy of a block's leading tokens |

Every method decides everything before it changes anything. So a result that means "not now" changes
nothing, but copies that make room may have been planned.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from prefix_cache.eviction.ref_counts import RefCounts
from prefix_cache.eviction.shares import PUBLISHED
from prefix_cache.hashing import TokenIds
from prefix_cache.leases.lease import Lease
from prefix_cache.leases.loader import Loader, loads_by_owner
from prefix_cache.leases.reuse_accounting import ReuseAccounting
from prefix_cache.leases.state_leasing import StateLeasing
from prefix_cache.namespace import NamespacePath
from prefix_cache.tiers.capacity import Capacity
from prefix_cache.tree.edge import NO_SLOTS, BlockIds
from prefix_cache.tree.match import (
    PrefixMatch,
    last_checkpoint,
    reachable,
    to_load,
    whereabouts,
)
from prefix_cache.tree.node import Node, Partial, Position
from storage.move import Move, Tier


class Leasing:
    """The open leases. Used by one thread only."""

    def __init__(
        self,
        ref_counts: RefCounts,
        capacity: Capacity,
        loader: Loader,
        reuse_accounting: ReuseAccounting,
        states: StateLeasing,
    ) -> None:
        self.leases: set[Lease] = set()
        self._states = states
        self._running: Counter[str] = Counter()
        self._tree = ref_counts.tree
        self._ref_counts = ref_counts
        self._capacity = capacity
        self._loader = loader
        self._reuse_accounting = reuse_accounting
        self._block_size = ref_counts.tree.block_size

    def give(
        self,
        path: NamespacePath,
        token_ids: TokenIds,
        known: TokenIds,
        owner: str,
        now: float,
        load_blocks: int | None,
        match: PrefixMatch | None,
    ) -> Lease | None:
        """Lease blocks for `token_ids`, or return None if there is no room now.

        `known` are the leading tokens that may come from the cache. `match` is an earlier match of
        these tokens.
        """
        match = self._tree.match(path, known, match)
        at = match.at.cut(reachable(match.at, load_blocks))
        if self._tree.needs_state:
            at = last_checkpoint(at, on_device=load_blocks == 0)
            if not self._states.may_open(at.node, owner):
                return None
        is_here = at.inside <= at.node.edge.num_device
        missing = -(-len(token_ids) // self._block_size) - at.num_blocks
        wanted = missing if is_here else missing + to_load(at)
        capacity = self._capacity
        if wanted > capacity.allocator.num_free and (
            wanted > capacity.obtainable - self._ref_counts.cost(at)
        ):
            return None  # there is no room even after all copies have ended
        node = self._ref_counts.split_at(at)
        self._ref_counts.inc_ref(node)
        is_apart = capacity.is_partitioned(owner)
        is_room = is_apart and self._own_room(node, owner, missing)
        partial = None
        if is_here:  # a lease that waits for loads copies no partial block
            partial = self._tree.partial(Position.after(node), path, known, stays=is_apart)
        if not is_apart:
            partial = capacity.keepable(partial, wanted)
            is_room = capacity.make_room(wanted, owner, partial)
        if not is_room:
            capacity.removals.free_nodes(self._ref_counts.dec_ref(node))
            return None
        lease = self._open(path, owner, node, now)
        if not is_here:
            self._loader.begin(node, owner, lease)
        self._fill(lease, missing, partial)
        if self._tree.needs_state:
            self._states.open(lease, match.known.num_blocks)
        return lease

    def pin(self, path: NamespacePath, token_ids: TokenIds, owner: str, now: float) -> Lease | None:
        """Lease blocks that are all on the device, and charge them to `owner`.

        Returns None if a block is not on the device. Also returns None if the model needs a
        recurrent state at the blocks' end and none is kept there.
        """
        at = self._tree.walk(path, token_ids)
        is_here = 0 < at.inside <= at.node.edge.num_device
        if not is_here or at.num_blocks * self._block_size < len(token_ids):
            return None
        if not self._capacity.may_adopt(at.node, owner):
            return None
        if self._tree.needs_state and not self._states.may_pin(at):
            return None
        node = self._ref_counts.split_at(at)
        self._ref_counts.inc_ref(node)
        lease = self._open(path, owner, node, now)
        self._capacity.adopt(node, owner)  # until now, other owners were charged
        self._states.pin(lease)
        self._fill(lease, 0, None)
        return lease

    def read(
        self,
        path: NamespacePath,
        token_ids: TokenIds,
        owner: str,
        now: float,
        *,
        with_state: bool = False,
    ) -> Lease | None:
        """Lease the leading blocks on the device for reading, or return None if there is none.

        With `with_state`, the lease ends at the last state checkpoint on the device and includes
        it.
        """
        at = self._tree.walk(path, token_ids)
        at = at.cut(whereabouts(at).device)
        if with_state:
            at = last_checkpoint(at, on_device=True)
            if not self._states.is_there(at):
                return None
        if not at.num_blocks:
            return None
        node = self._ref_counts.split_at(at)
        self._ref_counts.inc_ref(node)
        lease = self._open(path, owner, node, now)
        if with_state:
            self._states.pin(lease)
        self._fill(lease, 0, None)
        return lease

    def is_busy(self, owner: str) -> bool:
        """Return whether `owner` has an open lease."""
        return self._running[owner] > 0

    def in_use(self) -> Counter[str]:
        """Count the blocks in use by open leases, by the owner who is charged for them."""
        used, seen = Counter[str](), set[int]()
        for lease in self.leases:
            used[lease.owner] += len(lease.own_blocks())
            node = lease.node
            while node.parent is not None and id(node) not in seen:
                seen.add(id(node))
                used[node.owner] += node.edge.num_device
                node = node.parent
        return used

    def lengthen(self, lease: Lease, blocks: int, now: float) -> bool:
        """Add `blocks` private blocks, after dropping other blocks if needed.

        Returns False if there is no room now.
        """
        fresh = self._capacity.take_now(blocks, lease.owner)
        if fresh is None and self._is_alone(lease):
            is_room = self._capacity.make_room(blocks, lease.owner, None)
            fresh = self._capacity.take(blocks, lease.owner) if is_room else None
        if fresh is None:
            return False
        lease.append(fresh)
        self._ref_counts.touch(lease.node, now)
        return True

    def take_back(self, lease: Lease, now: float) -> None:
        """Free the lease's own blocks and release its hold on tree nodes."""
        lease.released = True
        self.leases.discard(lease)
        self._running[lease.owner] -= 1
        self._capacity.give_back(lease.own_blocks(), lease.owner)
        self._ref_counts.touch(lease.node, now)
        self._ref_counts.ended(lease.node, lease.num_added)
        self._capacity.removals.free_nodes(self._ref_counts.dec_ref(lease.node))

    def _own_room(self, node: Node, owner: str, missing: int) -> bool:
        """Make room for loads up to `node` and for `missing` blocks of `owner` after it."""
        needs = loads_by_owner(node)
        needs[owner] = needs.get(owner, 0) + missing
        is_room = self._capacity.make_own_room(needs)
        if is_room and not self.is_busy(owner) and self._capacity.is_leaving(owner):
            return False  # the blocks that a lease finds must not depend on the duration of copies
        if is_room:
            return True
        return self._is_alone() and self._capacity.make_room(sum(needs.values()), owner, None)

    def _is_alone(self, lease: Lease | None = None) -> bool:
        """Return whether tiers are partitioned, no copy is under way, and no other lease is open.

        If so, the lease may take room in other owners' partitions. Otherwise its sequence could
        never run.
        """
        if not self._capacity.is_still or not self._capacity.is_partitioned(""):
            return False
        others = (one for one in self.leases if one is not lease and not one.is_part)
        return all(one.owner == PUBLISHED for one in others)

    def _open(self, path: NamespacePath, owner: str, node: Node, now: float) -> Lease:
        way, shared = node.way_up(), node.end
        self._ref_counts.found(way, now)
        lease = Lease(
            path=path,
            owner=owner,
            shares=True,
            block_ids=NO_SLOTS,
            num_blocks=shared,
            num_shared=shared,
            node=node,
            cached_tokens=shared * self._block_size,
            moves=(),
            first_reads=self._reuse_accounting.found(way),
        )
        self.leases.add(lease)
        self._running[owner] += 1
        return lease

    def _fill(self, lease: Lease, missing: int, partial: Partial | None) -> None:
        fresh = self._capacity.take(missing, lease.owner)
        lease.block_ids = _block_ids(lease.node, fresh)
        lease.num_blocks += missing
        if partial is not None:
            lease.cached_tokens += partial.num_tokens
            lease.moves = (Move(Tier.DEVICE, partial.block_id, Tier.DEVICE, int(fresh[0])),)


def _block_ids(node: Node, fresh: BlockIds) -> BlockIds:
    parts = [fresh]
    while node.parent is not None:
        parts.append(node.edge.block_ids)
        node = node.parent
    return np.concatenate(parts[::-1]) if len(parts) > 1 else fresh
