"""The eviction policies `lru` (in `eviction_policy.py`) and `value`, which is defined here.

    lru      keeps the blocks that were used last
    value    keeps the blocks with the highest chance of reuse relative to the room they take; the
             chance is learned for each number of uses

`value` sets a node's priority when a request that used the node ends. The priority does not change
later. Priority is counted from `clock`, the number of blocks that have entered the tree so far. So
nodes that are used later get higher priorities. `clock` is the policy's only clock.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from struct import unpack

from prefix_cache.eviction.eviction_policy import EvictionPolicy, SortKey
from prefix_cache.hashing import KEY_BYTES
from prefix_cache.tree.node import Node

GHOSTS = 8  # number of evicted blocks to remember for each block in the tree
MOST_USES = 6  # blocks with this number of uses or more count as equal


class ReuseTable:
    """A table of the chance that blocks used n times are used again.

    The numbers of uses are 1, 2, ... and "many".
    """

    def __init__(self, trust: float = 30.0) -> None:
        """Create an empty table.

        The chance for n uses is a weighted mean of two shares: the share of blocks used n times
        that were used again, and this share for blocks with any number of uses. Both weights are
        equal once `trust` blocks have been used n times.
        """
        self._most = most = MOST_USES
        self._trust = trust
        self._stamped = [0.0] * (most + 1)
        self._again = [0.0] * (most + 1)
        self._all_stamped, self._all_again = 40.0, 10.0  # prior: of 40 blocks, 10 were used again

    def stamp(self, uses: int, blocks: int) -> None:
        """Count `blocks` blocks that have now been used `uses` times."""
        self._stamped[uses if uses < self._most else self._most] += blocks
        self._all_stamped += blocks

    def again(self, uses: int, blocks: int) -> None:
        """Count `blocks` blocks that had been used `uses` times and are used once more."""
        self._again[uses if uses < self._most else self._most] += blocks
        self._all_again += blocks

    def chance(self, uses: int) -> float:
        """Estimate the probability that a block used `uses` times is used again."""
        uses = uses if uses < self._most else self._most
        mean = self._all_again / self._all_stamped
        return (self._again[uses] + self._trust * mean) / (self._stamped[uses] + self._trust)


@dataclass(slots=True, eq=False)
class Ghost:
    """A ghost: a run of blocks that were evicted together, found by its first block's key."""

    keys: bytes
    uses: int

    def common_blocks(self, keys: bytes) -> int:
        """Count the leading blocks that this ghost has in common with a run."""
        low, high = 0, min(len(self.keys), len(keys)) // KEY_BYTES
        while low < high:  # keys are chained: after an unequal key, all keys are unequal
            middle = (low + high + 1) // 2
            at = slice((middle - 1) * KEY_BYTES, middle * KEY_BYTES)
            low, high = (middle, high) if self.keys[at] == keys[at] else (low, middle - 1)
        return low


class Ghosts:
    """A ghost list: the keys of the last evicted runs, 16 bytes for each block.

    A run of new blocks is compared with a ghost key by key. So only blocks that were in the tree
    before count as used before.
    """

    def __init__(self) -> None:
        self._by_first: OrderedDict[bytes, Ghost] = OrderedDict()
        self.num_blocks = 0

    def __len__(self) -> int:
        return len(self._by_first)

    def add(self, keys: bytes, uses: int) -> None:
        """Remember a run of blocks with these keys that was evicted after `uses` uses."""
        first = keys[:KEY_BYTES]
        self._drop(self._by_first.pop(first, None))
        self._by_first[first] = Ghost(keys, uses)
        self.num_blocks += len(keys) // KEY_BYTES

    def uses(self, keys: bytes) -> int:
        """Return the uses of the ghost with the same first block, or 0 if no ghost has it."""
        ghost = self._by_first.get(keys[:KEY_BYTES])
        return 0 if ghost is None else ghost.uses

    def alike(self, keys: bytes) -> int:
        """Count the leading blocks of a run that were used equally often. Returns 0 if all were."""
        total, at = len(keys) // KEY_BYTES, 0
        if self._by_first.keys().isdisjoint(unpack(f"{KEY_BYTES}s" * total, keys)):
            return 0
        uses = self.uses(keys)
        while at < total:
            ghost = self._by_first.get(keys[at * KEY_BYTES : (at + 1) * KEY_BYTES])
            if (0 if ghost is None else ghost.uses) != uses:
                return at
            at += 1 if ghost is None else ghost.common_blocks(keys[at * KEY_BYTES :])
        return 0

    def pop(self, keys: bytes) -> None:
        """Forget the ghosts of blocks with these keys, which are in the tree again."""
        total, at = len(keys) // KEY_BYTES, 0
        while at < total:
            ghost = self._by_first.pop(keys[at * KEY_BYTES : (at + 1) * KEY_BYTES], None)
            self._drop(ghost)
            at += 1 if ghost is None else ghost.common_blocks(keys[at * KEY_BYTES :])

    def keep(self, num_blocks: int) -> None:
        """Forget the oldest ghosts until at most `num_blocks` blocks are remembered."""
        while self.num_blocks > num_blocks:
            self._drop(self._by_first.popitem(last=False)[1])

    def _drop(self, ghost: Ghost | None) -> None:
        if ghost is not None:
            self.num_blocks -= len(ghost.keys) // KEY_BYTES


class ExpectedValue(EvictionPolicy):
    """A policy that keeps nodes with a high chance of reuse relative to their size.

    Priority is a time, counted in blocks that enter the tree. A node stays for `patience` x its
    chance of reuse x the number of blocks in the tree. The priority of a node that was used only
    once is lower by `insertion_penalty` for each block that was added with it. So a long prompt
    that is never reused leaves early.
    """

    def __init__(self, patience: float = 4.0, insertion_penalty: float = 6.0) -> None:
        self.clock = 0  # number of blocks added so far
        self.live = 0
        self._patience = patience
        self._insertion_penalty = insertion_penalty
        self._table = ReuseTable()
        self._ghosts = Ghosts()

    def fresh(self) -> ExpectedValue:
        return ExpectedValue(self._patience, self._insertion_penalty)

    def sort_key(self, node: Node) -> SortKey:
        return (node.priority, node.last_used, -node.start - node.edge.num_blocks)

    def new_blocks(self, keys: bytes) -> int:
        return self._ghosts.alike(keys)

    def may_grow(self, node: Node) -> bool:
        return node.hits + node.seen == 0

    def entered(self, node: Node) -> None:
        """Give a new node the uses that it had before its eviction, and one more."""
        node.seen = self._ghosts.uses(node.edge.key(0))
        if node.seen:
            self._table.again(node.seen, node.edge.num_blocks)
            self._ghosts.pop(node.edge.keys)
        node.priority = self._priority(node, node.edge.num_blocks)

    def restored(self, node: Node) -> None:
        self.clock += len(node.edge)
        self.live += len(node.edge)
        node.priority = self._priority(node, len(node.edge))

    def used(self, node: Node) -> None:
        """Learn that a node with this number of uses was used again."""
        self._table.again(node.hits + node.seen, node.edge.num_blocks)

    def ended(self, node: Node, added: int) -> None:
        """Learn how many blocks have each number of uses, and set the priorities along the path."""
        for one in node.way_up():
            self._table.stamp(one.hits + one.seen + 1, one.edge.num_blocks)
        self.clock += added
        self.live += added
        for one in node.way_up():
            one.priority = self._priority(one, added)

    def left(self, node: Node, keys: bytes) -> None:
        self.live -= len(keys) // KEY_BYTES
        if self.live < 0:
            self.live = 0
        self._ghosts.add(keys, node.hits + node.seen + 1)
        self._ghosts.keep(GHOSTS * (self.live or 1))

    def _priority(self, node: Node, added: int) -> float:
        uses = node.hits + node.seen + 1
        stays = self._patience * self._table.chance(uses) * self.live
        if uses == 1:
            earlier = self._insertion_penalty * added
            stays -= earlier if earlier < self.live else self.live
        return self.clock + stays
