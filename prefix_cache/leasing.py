"""How a lease is given and taken back: blocks found, being loaded, partly copied, and fresh.

    0 ...... found ...... at.num_blocks ...... all tokens
    | held in the tree;  | private blocks, for which room     |
    | loaded where lower | is made; the first may begin with  |
    |                    | a copy of a block's leading tokens |

Everything is decided before anything is changed, so an answer of "not now" changes nothing, except
that copies may have been begun which will make room.

Knows: the tree, holds, the supply, and which leases there are. Does not know: how blocks enter the
tree (`commit`), or what becomes of a lease whose blocks are forgotten (`pruning`).
"""

from __future__ import annotations

import numpy as np

from prefix_cache.allocator import BlockIds
from prefix_cache.ascent import Ascent, reachable, to_load
from prefix_cache.edge import NO_SLOTS
from prefix_cache.hashing import TokenIds
from prefix_cache.holds import Holds
from prefix_cache.lease import Lease
from prefix_cache.namespace import NamespacePath
from prefix_cache.node import Node, Partial, Position
from prefix_cache.readership import Readership
from prefix_cache.supply import Supply
from prefix_cache.tree import RadixTree
from storage.move import Move, Tier


class Leasing:
    """The leases that are open. One owner thread."""

    def __init__(
        self,
        tree: RadixTree,
        holds: Holds,
        supply: Supply,
        ascent: Ascent,
        readership: Readership,
    ) -> None:
        self.leases: set[Lease] = set()
        self._tree = tree
        self._holds = holds
        self._supply = supply
        self._ascent = ascent
        self._readership = readership
        self._block_size = tree.block_size

    def give(
        self,
        path: NamespacePath,
        token_ids: TokenIds,
        known: TokenIds,
        owner: str,
        now: float,
        load_blocks: int | None,
    ) -> Lease | None:
        """Lease blocks for all of `token_ids`, of which `known` may be found; None: not now."""
        at = self._tree.walk(path, known)
        is_here = at.inside <= at.node.edge.num_device
        if not is_here:
            at, is_here = self._within_reach(at, path, known, load_blocks)
        missing = -(-len(token_ids) // self._block_size) - at.num_blocks
        wanted = missing if is_here else missing + to_load(at)
        if wanted > self._supply.allocator.num_free and not self._may_have(wanted, at):
            return None
        # A lease that waits copies nothing.
        partial = self._tree.partial(at, path, known) if is_here else None
        node = self._holds.split_at(at)
        self._holds.hold(node)
        if partial is not None:
            partial = self._supply.keepable(partial, wanted)
        if not self._supply.make_room(wanted, owner, partial):
            self._supply.give_back_nodes(self._holds.let_go(node))
            return None
        lease = self._open(path, owner, node, now)
        lease.first_reads = self._readership.found(node)
        if not is_here:
            self._ascent.begin(node, owner, lease)
        self._fill(lease, missing, partial)
        return lease

    def pin(self, path: NamespacePath, token_ids: TokenIds, owner: str, now: float) -> Lease | None:
        """Lease whole blocks that are all on the device, and charge `owner`; None: they are not."""
        at = self._tree.walk(path, token_ids)
        is_here = 0 < at.inside <= at.node.edge.num_device
        if not is_here or at.num_blocks * self._block_size < len(token_ids):
            return None
        if not self._supply.may_adopt(at.node, owner):
            return None
        node = self._holds.split_at(at)
        self._holds.hold(node)
        lease = self._open(path, owner, node, now)
        self._readership.found(node)  # while they are still their writers'
        self._supply.adopt(node, owner)
        self._fill(lease, 0, None)
        return lease

    def lengthen(self, lease: Lease, blocks: int, now: float) -> bool:
        """Add `blocks` private blocks, and drop others if need be; False: not now."""
        fresh = self._supply.take_now(blocks, lease.owner)
        if fresh is None:
            return False
        lease.append(fresh)
        self._holds.touch(lease.node, now)
        return True

    def take_back(self, lease: Lease, now: float) -> None:
        """Free what is the lease's own and let go of the rest."""
        lease.released = True
        self.leases.discard(lease)
        self._supply.give_back(lease.own_blocks(), lease.owner)
        self._holds.touch(lease.node, now)
        self._holds.ended(lease.node, lease.num_added)
        self._supply.give_back_nodes(self._holds.let_go(lease.node))

    def _may_have(self, wanted: int, at: Position) -> bool:
        """Whether `wanted` blocks beside those up to `at` are free or can be made free in time."""
        return wanted <= self._supply.obtainable - self._holds.cost(at)

    def _within_reach(
        self, at: Position, path: NamespacePath, known: TokenIds, load_blocks: int | None
    ) -> tuple[Position, bool]:
        """How far a lease may count on the tree, and whether all of that is on the device."""
        blocks = reachable(at, load_blocks)
        if blocks < at.num_blocks:
            at = self._tree.walk(path, known[: blocks * self._block_size])
        return at, at.inside <= at.node.edge.num_device

    def _open(self, path: NamespacePath, owner: str, node: Node, now: float) -> Lease:
        """A lease of all blocks up to the end of `node`, which is held already."""
        self._holds.found(node, now)
        shared = node.end
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
        )
        self.leases.add(lease)
        return lease

    def _fill(self, lease: Lease, missing: int, partial: Partial | None) -> None:
        """Write down where the shared blocks lie, and add `missing` fresh ones, which are free."""
        fresh = self._supply.take(missing, lease.owner)
        lease.block_ids = _block_ids(lease.node, fresh)
        lease.num_blocks += missing
        if partial is not None:
            lease.cached_tokens += partial.num_tokens
            lease.moves = (Move(Tier.DEVICE, partial.block_id, Tier.DEVICE, int(fresh[0])),)


def _block_ids(node: Node, fresh: BlockIds) -> BlockIds:
    """The block ids of all positions up to the node's end, and `fresh` behind them."""
    parts = [fresh]
    while node.parent is not None:
        parts.append(node.edge.block_ids)
        node = node.parent
    return np.concatenate(parts[::-1]) if len(parts) > 1 else fresh
