"""The prefixes that owners have marked. They are retained for a time, listed, and can be forgotten.

    retain   until its time has passed, a prefix is evicted after the owner's other blocks; each
             use begins the time anew (`eviction/retention.py`)
    lapse    the time has passed: the prefix is cached like any other, and no longer listed
    forget   the owner is done with it: its blocks are dropped unless another listed prefix
             needs them

Only the owner's own blocks in the path's last namespace are retained. So a mark in a namespace of
many owners affects no other owner. For each owner, the `MOST` prefixes that were marked last are
listed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial

from prefix_cache.eviction.ref_counts import RefCounts
from prefix_cache.hashing import TokenIds
from prefix_cache.namespace import NamespacePath
from prefix_cache.tiers.pruning import Pruning
from prefix_cache.tiers.removals import Removals
from prefix_cache.tree.node import Node, Position
from storage.move import Tier

MOST = 256


@dataclass(frozen=True, slots=True)
class RetainedPrefix:
    """A listed prefix, of which the first `sum(held.values())` blocks are still cached."""

    prefix_id: bytes  # the key of the prefix's last block
    num_blocks: int
    held: dict[Tier, int]  # blocks, by their fastest tier
    retained_for: float  # retention in seconds, restarted at each use
    left: float


_Held = tuple[int, int, int]  # numbers of blocks on the device, in the host, on disk


@dataclass(slots=True, eq=False)
class _Entry:
    node: Node  # the node that ends where the prefix ends
    num_blocks: int


class _Branch:
    """A branch to drop. `find_top` returns its first node for one of `nodes`, and None for others.

    Requests may split the first node while the branch is dropped. The upper part is dropped too.
    """

    def __init__(self, nodes: list[Node], find_top: Callable[[Node], Node | None]) -> None:
        self._nodes = nodes
        self._find_top = find_top
        self._top: Node | None = None
        self._start = 0
        self._rest: Node | None = None

    def left(self) -> list[Node]:
        """Return the nodes to search. Later, return the first node that is left, if any."""
        if self._top is None:
            nodes, self._nodes = self._nodes, []
            return nodes
        node = self._top
        while not node.attached and node.parent is not None:
            node = node.parent
        if node.parent is None or node.start < self._start:
            return []
        self._rest = node
        return [node]

    def top_of(self, node: Node) -> Node | None:
        """Return the first node to drop: from `find_top`, later `node` if `left` returned it."""
        if self._top is not None:
            return node if node is self._rest else None
        self._top = self._find_top(node)
        if self._top is not None:
            self._start = self._top.start
        return self._top


class RetainedPrefixes:
    """The marked prefixes of all owners. Used by one thread only."""

    def __init__(self, ref_counts: RefCounts, removals: Removals) -> None:
        self._ref_counts = ref_counts
        self._retention = ref_counts.retention
        self._tree = ref_counts.tree
        self._removals = removals
        self._by_owner: dict[str, OrderedDict[bytes, _Entry]] = {}

    def retain(self, path: NamespacePath, tokens: TokenIds, owner: str, seconds: float) -> None:
        """Retain the owner's cached whole blocks of `tokens`."""
        node = self._ref_counts.split_at(self._tree.walk(path, tokens))
        namespace = path.last
        own = [one for one in node.way_up() if (one.owner, one.namespace) == (owner, namespace)]
        if not own:
            return
        for one in own:
            self._retention.retain(one, seconds)
            self._ref_counts.offer(one)
        entries = self._swept(owner)
        entries[own[0].last_key] = _Entry(own[0], own[0].end)
        entries.move_to_end(own[0].last_key)
        if len(entries) > MOST:
            entries.popitem(last=False)
        self._by_owner[owner] = entries

    def listed(self, owner: str, *, now: float) -> list[RetainedPrefix]:
        """List the owner's unlapsed prefixes. The prefix that was marked last comes first.

        Takes time proportional to the number of nodes of these prefixes.
        """
        self._at(now)
        held: dict[Node, _Held] = {}
        entries = reversed(self._swept(owner).items())
        return [self._described(key, one, _held_to(one.node, held)) for key, one in entries]

    def forget(
        self, owner: str, prefix_id: bytes, *, now: float, is_marked: bool = True
    ) -> Pruning | None:
        """Unlist a prefix, and begin to drop its blocks unless another listed prefix needs them.

        Blocks that follow the prefix are dropped too. If a longer listed prefix contains this
        prefix, no block is dropped. Returns None if the owner has no listed prefix with this id.

        With `is_marked` false, the prefix need not be listed. All nodes of the owner may have to be
        read to find an unlisted prefix.
        """
        self._at(now)
        entry = self._swept(owner).pop(prefix_id, None)
        if entry is not None:
            branch = _Branch([entry.node], partial(self._top_of, owner))
        elif is_marked:
            return None
        else:
            nodes = reversed(self._tree.owned.get(owner, {}))
            branch = _Branch([*nodes], partial(self._top_of_ending, owner, prefix_id))
        return Pruning(self._removals, branch.left, top_of=branch.top_of)

    def _top_of_ending(self, owner: str, key: bytes, node: Node) -> Node | None:
        """Return the top of the prefix that ends with the block `key`, if `node` has this block."""
        block = node.edge.place_of(key)
        if block is None:
            return None
        at = Position(node, block + 1, node.start + block + 1)
        return self._top_of(owner, self._ref_counts.split_at(at))

    def _top_of(self, owner: str, end: Node) -> Node | None:
        """Return the first node to drop of the prefix that ends at `end`, or None.

        Nodes that other listed prefixes need are not dropped.
        """
        others: set[Node] = set()
        for other in self._swept(owner).values():
            others.update(_way_up_to(other.node, others))
        top: Node | None = None
        node: Node | None = end
        while (
            node is not None
            and node.namespace == end.namespace
            and node not in others
            and _is_own(node, owner, top)
        ):
            top, node = node, node.parent
        return top

    def drop(self, owner: str) -> None:
        """Unlist all prefixes of `owner`, after the owner's blocks have been forgotten."""
        self._by_owner.pop(owner, None)

    def _at(self, now: float) -> None:
        self._removals.eviction_log.now = self._retention.now = now

    def _swept(self, owner: str) -> OrderedDict[bytes, _Entry]:
        entries = self._by_owner.get(owner)
        if entries is None:
            return OrderedDict()
        for key, entry in list(entries.items()):
            if not self._retention.keeps(entry.node) or not entry.node.attached:
                del entries[key]
        if not entries:
            del self._by_owner[owner]
        return entries

    def _described(self, key: bytes, entry: _Entry, held: _Held) -> RetainedPrefix:
        left = entry.node.retained_until - self._retention.now
        by_tier = dict(zip(Tier, held, strict=True))
        return RetainedPrefix(key, entry.num_blocks, by_tier, entry.node.retained_for, left)


def _way_up_to(end: Node, known: Container[Node]) -> list[Node]:
    way, node = list[Node](), end
    while node.parent is not None and node not in known:
        way.append(node)
        node = node.parent
    return way


def _held_to(end: Node, known: dict[Node, _Held]) -> _Held:
    new = _way_up_to(end, known)
    above = new[-1].parent if new else end
    device, host, disk = (0, 0, 0) if above is None else known.get(above, (0, 0, 0))
    for node in reversed(new):
        edge = node.edge
        device += edge.num_device
        host += edge.num_upper - edge.num_device
        disk += edge.num_blocks - edge.num_upper
        known[node] = (device, host, disk)
    return device, host, disk


def _is_own(node: Node, owner: str, below: Node | None) -> bool:
    return node.owner == owner and (below is None or len(node.children) == 1)
