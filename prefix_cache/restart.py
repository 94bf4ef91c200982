"""The saving of the prefix cache before a stop, and its restoring after a start.

    save      blocks that are not on disk are copied there, hottest first   before a stop
    restore   the part of the tree that is on disk is rebuilt               after a start
    hottest   the prefixes that were used most are loaded to the device     before any request

A recurrent state on disk takes several records, each as large as the record of a block. The state
is restored if all its records and the block before it are there.

A restored block is put after the block whose key its record names, without comparing tokens. So
keys are checked twice. A record whose key is not the digest of its content is dropped. Two
different records with the same key are both dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from prefix_cache.errors import RestoreError
from prefix_cache.eviction.ref_counts import RefCounts
from prefix_cache.hashing import ROOT_KEY, Digest
from prefix_cache.leases.loader import Loader
from prefix_cache.namespace import NAMESPACE_BYTES, Namespace
from prefix_cache.tiers.capacity import Capacity
from prefix_cache.tiers.in_flight import InFlight
from prefix_cache.tree.edge import Edge
from prefix_cache.tree.match import reachable, to_load
from prefix_cache.tree.node import Node, Position
from prefix_cache.tree.residency import DISK, IN_FLIGHT
from storage.move import BlockRecord, Tier

Stored = tuple[int, BlockRecord]
# The fields that a block and the recurrent state after it share: key, parent, namespace, tokens,
# owner.
Identity = tuple[bytes, bytes, bytes, bytes, str]


class Restart:
    """The save and the restore of the whole cache, during which no step runs."""

    def __init__(
        self,
        ref_counts: RefCounts,
        capacity: Capacity,
        loader: Loader,
        in_flight: InFlight,
        digest: Digest,
    ) -> None:
        self._tree = ref_counts.tree
        self._tiers = capacity.tiers
        self._ref_counts = ref_counts
        self._capacity = capacity
        self._loader = loader
        self._in_flight = in_flight
        self._digest = digest
        self._unsaved: list[Node] = []  # the nodes that `save` has not looked at, hottest last
        self._is_last_look = False  # whether no copy was planned or awaited since nodes were sorted

    def restore(self, found: Iterable[Stored], *, now: float) -> int:
        """Rebuild the tree after a start from (slot, record) pairs on disk, in any order.

        Whole chains from position 0 are put into the tree. The next plan erases all other slots.
        Returns the number of restored blocks. Raises RestoreError unless the cache is empty and has
        a disk tier.
        """
        is_empty = not self._tree.num_nodes and not len(self._in_flight)
        if Tier.DISK not in self._capacity.allocators or not is_empty:
            raise RestoreError("only a cache with a disk tier and nothing in it can be restored")
        below: defaultdict[bytes, list[Stored]] = defaultdict(list)
        slots: set[int] = set()
        sound, parts = self._sound(found, slots)
        states = self._whole_states(parts)
        for slot, record in sound:
            below[record.parent_key].append((slot, record))
        taken: list[int] = []
        kept: list[int] = []
        waiting = [(self._tree.root, first) for first in below[ROOT_KEY]]
        while waiting:
            parent, first = waiting.pop()
            run = _run_from(first, below, states)
            taken += [slot for slot, _ in run]
            node = self._add(parent, run, now)
            kept += self._add_state(node, states.get(_identity(run[-1][1])))
            waiting += [(node, then) for then in below[run[-1][1].key]]
        self._capacity.took_on_disk(taken, slots.difference(taken, kept))
        return len(taken)

    def hottest(self, blocks: int) -> int:
        """Start to load the prefixes with the most hits, up to `blocks` blocks.

        The blocks are copied to free slots of the device and keep their lower copies. Nothing is
        evicted. The copies are in the next plan. Returns the number of copies.
        """
        left = room = min(blocks, self._capacity.allocator.num_free)
        lower = [node for node in self._tree.nodes() if not node.edge.is_on_device]
        for node in sorted(lower, key=lambda n: (-n.hits - n.seen, -n.last_used, n.start)):
            whole = Position.after(node)
            at = whole.cut(reachable(whole, left))
            loads = to_load(at)
            if loads:
                top = self._ref_counts.split_at(at)
                self._loader.begin(top, top.owner)
                left -= loads
                self._load_state(top)
            if not left:
                break
        return room - left

    def save(self, blocks: int) -> int:
        """Plan copies of up to `blocks` blocks and recurrent states to disk, before a stop.

        Blocks that the policy values most come first, and each block follows its prefix. The nodes
        are sorted at the first call, and again after all of them have had their turn, because some
        may have waited for copies of blocks before them. At most `Tiers.max_disk_writes` copies are
        under way at once. The caller completes the plan and calls again. Returns the number of
        planned copies. The save is complete when this number is 0 and no copy is under way.
        """
        if Tier.DISK not in self._capacity.allocators:
            return 0
        planned = self._save_unsaved(blocks)
        if not planned and not self._unsaved and not self._is_last_look:
            planned = self._save_unsaved(blocks)
        return planned

    def _save_unsaved(self, blocks: int) -> int:
        if not self._unsaved:
            self._unsaved = sorted(self._tree.nodes(), key=self._ref_counts.sort_key)
            self._is_last_look = True
        left, again = blocks, list[Node]()
        while left and self._unsaved and self._capacity.offloader.may_write:
            node, before = self._unsaved.pop(), left
            if node.attached:
                left -= self._save_way(node, left)
            if left < before or node.transfers:
                again.append(node)
        self._unsaved += reversed(again)
        self._is_last_look &= not again
        return blocks - left

    def _save_way(self, node: Node, blocks: int) -> int:
        """Plan copies of up to `blocks` blocks and states on the way to a node; return how many."""
        left = blocks
        for part in reversed(node.way_up()):
            left -= self._capacity.offloader.save(part, left)
            if not _is_saved(part):
                break  # a block on disk is useless without the blocks before it
            if left and self._capacity.state_copies.save(part):
                left -= 1
        return blocks - left

    def _load_state(self, node: Node) -> None:
        is_free = self._capacity.checkpoints.device.allocator.num_free > 0
        if is_free and node.checkpoint is not None and node.checkpoint.device_slot is None:
            self._capacity.state_copies.load(node, node.owner)

    def _add_state(self, node: Node, slot: int | None) -> Iterable[int]:
        if slot is None:
            return ()
        self._capacity.checkpoints.restored(node, slot)
        return self._tiers.erased_with(slot)

    def _whole_states(self, parts: Iterable[Stored]) -> dict[Identity, int]:
        found: defaultdict[int, dict[int, Identity]] = defaultdict(dict)
        for slot, record in parts:
            state, part = divmod(slot - self._tiers.disk_blocks, self._tiers.state_blocks)
            if part == record.state_part and 0 <= state < self._tiers.disk_states:
                found[state][part] = _identity(record)
        return {
            of[0]: state
            for state, of in found.items()
            if len(of) == self._tiers.state_blocks and len(set(of.values())) == 1
        }

    def _sound(self, found: Iterable[Stored], slots: set[int]) -> tuple[list[Stored], list[Stored]]:
        """Return valid records of KV blocks, at most one for each key, and all records of states.

        Adds the slots of all records to `slots`.
        """
        by_key: dict[bytes, Stored] = {}
        doubtful, parts = set(), []
        for slot, record in found:
            if slot in slots:
                continue
            slots.add(slot)
            if record.state_part is not None:
                parts.append((slot, record))
                continue
            if not self._is_sound(slot, record):
                continue
            other = by_key.setdefault(record.key, (slot, record))[1]
            if _content(other) != _content(record):
                doubtful.add(record.key)
        return [stored for key, stored in by_key.items() if key not in doubtful], parts

    def _is_sound(self, slot: int, record: BlockRecord) -> bool:
        whole = len(record.token_ids) == 4 * self._tree.block_size
        content = record.namespace + record.parent_key + record.token_ids
        return (
            whole
            and 0 <= slot < self._capacity.allocators[Tier.DISK].total
            and len(record.namespace) == NAMESPACE_BYTES
            and self._digest(content) == record.key
        )

    def _add(self, parent: Node, run: list[Stored], now: float) -> Node:
        records = [record for _, record in run]
        edge = Edge(
            np.frombuffer(b"".join(r.token_ids for r in records), dtype="<i4").astype(np.int32),
            np.array([slot for slot, _ in run], dtype=np.int32),
            b"".join(r.key for r in records),
            self._tree.block_size,
            Tier.DISK,
        )
        first = records[0]
        node = self._tree.add(parent, Namespace(first.namespace), edge, owner=first.owner, now=now)
        self._capacity.quota_usages[Tier.DISK].charge(node.owner, len(records))
        self._ref_counts.entered(node)
        node.seen = max(node.seen, first.hits)
        # blocks from before the restart count as read (`reuse_accounting`)
        node.num_read = len(edge)
        self._ref_counts.policy_of(node.owner).restored(node)
        self._ref_counts.changed(node)
        self._ref_counts.offer(parent)
        return node


def _run_from(
    first: Stored, below: dict[bytes, list[Stored]], states: Mapping[Identity, int]
) -> list[Stored]:
    """Return the records from `first` on that form one node: equal namespace, owner and hits."""
    run = [first]
    while len(then := below.get(run[-1][1].key, [])) == 1 and _alike(first[1], then[0][1]):
        if _identity(run[-1][1]) in states:
            break
        run.append(then[0])
    return run


def _identity(record: BlockRecord) -> Identity:
    return record.key, *_content(record), record.owner


def _alike(one: BlockRecord, other: BlockRecord) -> bool:
    return (one.namespace, one.owner, one.hits) == (other.namespace, other.owner, other.hits)


def _content(record: BlockRecord) -> tuple[bytes, bytes, bytes]:
    return record.parent_key, record.namespace, record.token_ids


def _is_saved(node: Node) -> bool:
    return bool((node.edge.states & (DISK | IN_FLIGHT * DISK) != 0).all())
