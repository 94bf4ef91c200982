"""The commit of a lease's full KV blocks to the radix tree.

    num_shared                                            whole
    |  equal blocks are there already  |  the tree has none |
    |  -> `_follow`: keep our copies,  |  -> `_insert`: one |
    |     hold the tree's last block   |    run per namespace|

If an equal block lies in a lower tier, the lease's copy becomes the tree's copy on the device. If
an equal block is being loaded, no block from there on is shared until the load has ended.

A generating sequence commits a block every few steps. The sequence's node grows in place, so a long
answer is one node.
"""

from __future__ import annotations

from prefix_cache.eviction.ref_counts import RefCounts
from prefix_cache.hashing import KEY_BYTES, Digest, TokenIds, block_keys
from prefix_cache.leases.lease import Lease
from prefix_cache.leases.reuse_accounting import ReuseAccounting
from prefix_cache.namespace import Namespace
from prefix_cache.tiers.capacity import Capacity
from prefix_cache.tree.edge import Edge
from prefix_cache.tree.match import blocks_before_coming
from prefix_cache.tree.node import Position
from prefix_cache.tree.residency import PLACE
from storage.move import Tier


class Committer:
    """The component that commits new blocks of leases to the tree."""

    def __init__(
        self,
        ref_counts: RefCounts,
        capacity: Capacity,
        digest: Digest,
        reuse_accounting: ReuseAccounting,
    ) -> None:
        self._tree = ref_counts.tree
        self._ref_counts = ref_counts
        self._capacity = capacity
        self._digest = digest
        self._reuse_accounting = reuse_accounting

    def commit(
        self,
        lease: Lease,
        tokens: TokenIds,
        prompt_keys: bytes,
        *,
        now: float,
        is_written: bool = True,
    ) -> None:
        """Share the whole KV blocks of `tokens` with the tree.

        The lease's node must be attached. `prompt_keys` are the keys of the first blocks. Keys of
        later blocks are computed here. With `is_written`, the blocks count as written under the
        lease's label.
        """
        first = lease.num_shared
        at = self._tree.walk(lease.path, tokens, lease.node)
        completed = blocks_before_coming(at)
        if completed < at.num_blocks:
            tokens = tokens[: completed * self._tree.block_size]
            at = at.cut(completed)
        keys = self._keys(lease, tokens, prompt_keys)
        self._follow(lease, at)
        keys = keys[(lease.num_shared - first) * KEY_BYTES :]
        self._insert(lease, tokens, keys, now, lease.writer if is_written else "")
        self._ref_counts.touch(lease.node, now)

    def _keys(self, lease: Lease, tokens: TokenIds, prompt_keys: bytes) -> bytes:
        size = self._tree.block_size
        known = prompt_keys[lease.num_shared * KEY_BYTES : len(tokens) // size * KEY_BYTES]
        first = lease.num_shared + len(known) // KEY_BYTES
        if first * size >= len(tokens):
            return known
        return known + block_keys(
            lease.path,
            tokens[first * size :],
            size,
            digest=self._digest,
            parent=known[-KEY_BYTES:] or lease.node.last_key,
            first_block=first,
        )

    def _follow(self, lease: Lease, at: Position) -> None:
        first = lease.num_shared
        if at.num_blocks > first:
            node = self._ref_counts.split_at(at)
            self._ref_counts.inc_ref(node)
            self._ref_counts.dec_ref(lease.node)
            lease.node, lease.num_shared = node, node.end
            lower = self._place_lower(lease)
            if lower > first:
                lease.add_duplicates(first, lower)

    def _place_lower(self, lease: Lease) -> int:
        """Use the lease's blocks as device copies of shared blocks that are in lower tiers.

        Returns the position of the first such block, or the end of the shared blocks.
        """
        node, first = lease.node, lease.num_shared
        while not node.edge.is_on_device and node.parent is not None:
            edge, start = node.edge, node.edge.num_device
            first = node.start + start
            edge.block_ids[start:] = lease.block_ids[first : node.end]
            upper = edge.num_upper
            edge.change(slice(start, len(edge)), PLACE, Tier.DEVICE)
            if self._tree.changes is not None:
                self._tree.changes.moved(edge, start, upper)
            self._capacity.placed(node, len(edge) - start, lease.owner)
            node = node.parent
        if first < lease.num_shared:
            lease.note_added(first)
        return first

    def _insert(self, lease: Lease, tokens: TokenIds, keys: bytes, now: float, label: str) -> None:
        size, last = self._tree.block_size, len(tokens) // self._tree.block_size
        first = lease.num_shared
        while lease.num_shared < last:
            start = lease.num_shared
            namespace, span_end = lease.path.span_at(start)
            end = min(span_end or last, last)
            run_keys = keys[(start - first) * KEY_BYTES : (end - first) * KEY_BYTES]
            apart = self._ref_counts.policy_of(lease.owner).new_blocks(run_keys)
            if apart:
                end, run_keys = start + apart, run_keys[: apart * KEY_BYTES]
            run = Edge(
                tokens[start * size : end * size], lease.block_ids[start:end], run_keys, size
            )
            lease.note_added(start)
            # Only blocks in the path's last namespace get the label. Earlier namespaces are shared
            # with other leases, and these leases would learn the label.
            writer = label if span_end is None else ""
            self._reuse_accounting.wrote(lease.owner, len(run))
            if writer:
                lease.num_written += len(run)
            self._append(lease, namespace, writer, run, now)

    def _append(
        self, lease: Lease, namespace: Namespace, writer: str, run: Edge, now: float
    ) -> None:
        """Append blocks to the lease's node, or add a child node if that node may not grow."""
        node, owner = lease.node, lease.owner
        alone = node.leases == 1 and not node.held_children and not node.children
        alike = (node.namespace, node.owner, node.writer) == (namespace, owner, writer)
        may_end = not node.retained_until and node.checkpoint is None
        if alone and alike and may_end and self._ref_counts.policy_of(owner).may_grow(node):
            node.edge.append(run)
            lease.num_shared = node.end
            if self._tree.changes is not None:
                self._tree.changes.added(run)
        else:
            child = self._tree.add(node, namespace, run, owner=owner, now=now, writer=writer)
            self._ref_counts.grown(child, node)
            lease.node, lease.num_shared = child, child.end
