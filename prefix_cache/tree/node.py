"""The parts of the tree: nodes, their children, copies under way, and positions.

Other modules keep a node's data up to date: its leases, its uses, and the tiers of its children.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import compress, product

from sortedcontainers import SortedList

from prefix_cache.hashing import ROOT_KEY
from prefix_cache.namespace import Namespace
from prefix_cache.tree.edge import Edge
from storage.move import DEVICE_TIER, DISK_TIER, HOST_TIER, Move, Tier

TIERS = {flags: tuple(compress(Tier, flags)) for flags in product((False, True), repeat=len(Tier))}
NO_TIERS: tuple[Tier, ...] = ()
LOWER_TIERS = (HOST_TIER, DISK_TIER)
FEW = 8  # maximum number of children that are searched unsorted


class Children(dict[bytes, "Node"]):
    """A node's children, by namespace and first KV block, sorted when first needed."""

    _order: SortedList[bytes] | None = None

    def put(self, key: bytes, child: Node) -> None:
        """Add a child, or replace the child with the same key."""
        if self._order is not None and key not in self:
            self._order.add(key)
        self[key] = child

    def remove(self, key: bytes) -> None:
        """Remove the child with this key."""
        del self[key]
        if self._order is not None:
            self._order.remove(key)

    def neighbours(self, key: bytes) -> list[Node]:
        """Return the children on either side of `key`'s place in byte order.

        One of these two children has the most leading bytes in common with `key`.
        """
        if not self:
            return []
        order = self._in_order()
        at = order.bisect_left(key)
        return [self[near] for near in order[max(at - 1, 0) : at + 1]]

    def beginning(self, start: bytes) -> Iterator[Node]:
        """Yield the children whose key begins with `start`.

        Callers must not change the children meanwhile.
        """
        if len(self) <= FEW:
            yield from (child for key, child in self.items() if key.startswith(start))
            return
        for key in self._in_order().irange(start):
            if not key.startswith(start):
                return
            yield self[key]

    def _in_order(self) -> SortedList[bytes]:
        if self._order is None:
            self._order = SortedList(self)
        return self._order


@dataclass(slots=True, eq=False)
class Transfer:
    """A running transfer of a run of KV blocks from one tier to another.

    No block of the run leaves its node before all copies have ended. Then all copies complete
    together. Positions are counted from the prompt's block 0.

    A transfer can also copy the recurrent state at the end of a node. Then `nodes` has only this
    node, the run is empty, and there is one copy.
    """

    source: Tier
    target: Tier
    start: int
    end: int
    # Nodes of the blocks, in order of position. A split adds a node.
    nodes: list[Node] = field(repr=False)
    for_owner: str
    makes_room: bool  # whether the blocks leave `source` once they lie in `target`
    moves: list[Move]  # the copies to make, in order of position
    open: int  # copies that have not ended
    of_state: bool = False
    # Whether steps may read the blocks before the copies end. The steps wait for missing layers.
    is_released: bool = False
    missed: set[int] = field(default_factory=set)  # positions of blocks that have not arrived
    lost: set[int] = field(default_factory=set)  # missed positions with a damaged source copy

    def parts(self) -> list[tuple[Node, int, int]]:
        """Return each node with the range [start, end) of its blocks in this transfer."""
        if len(self.nodes) == 1:
            start = self.nodes[0].start
            return [(self.nodes[0], self.start - start, self.end - start)]
        return [
            (node, max(self.start - node.start, 0), min(self.end, node.end) - node.start)
            for node in self.nodes
        ]

    def node_at(self, position: int) -> Node:
        """Return the node that has the block at `position`."""
        return next(node for node in self.nodes if position < node.end)


@dataclass(slots=True, eq=False)
class StateCopy:
    """A whole copy of a recurrent state, in a state slot of one tier."""

    slot: int
    since: float = 0.0  # the policy's clock at the last use (`eviction.checkpoint_worth`)
    priority: float = 0.0


@dataclass(slots=True, eq=False)
class Checkpoint:
    """A state checkpoint: the recurrent state at a node's end, with its copies in each tier."""

    copies: dict[Tier, StateCopy] = field(default_factory=dict)
    coming: dict[Tier, Transfer] = field(default_factory=dict)
    readers: int = 0
    kept: bool = True  # False after a failed copy down, until the next use
    # number of leases that began at this checkpoint, or made it where sequences diverged
    starts: int = 0

    @property
    def device_slot(self) -> int | None:
        """The device slot that has or gets the recurrent state, or None."""
        if DEVICE_TIER in self.copies:
            return self.copies[DEVICE_TIER].slot
        coming = self.coming.get(DEVICE_TIER)
        return None if coming is None else coming.moves[0].target

    @property
    def lower_tier(self) -> Tier | None:
        """The fastest tier below the device that has a copy, or None."""
        return next((tier for tier in LOWER_TIERS if tier in self.copies), None)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Node:
    """A run of KV blocks after its parent's blocks. Nodes are compared by identity."""

    namespace: Namespace
    edge: Edge
    owner: str  # the owner whose request computed these blocks
    start: int
    parent: Node | None = field(repr=False)
    last_used: float
    children: Children = field(default_factory=Children, repr=False)
    leases: int = 0
    held_children: int = 0
    attached: bool = True  # False once flushed or discarded: no match finds it
    hits: int = 0  # number of requests that found the node since it was added
    trims: int = 0
    num_read: int = 0  # number of leading blocks that any request has found since they were added
    writer: str = ""  # label of the request that wrote the blocks, or ""
    # number of uses of the blocks before their last eviction or a restart, if remembered
    seen: int = 0
    priority: float = 0.0  # set by the eviction policy when a request uses the node
    kept: bool = True  # False after a failed copy down, until the next use
    retained_until: float = 0.0  # time until which other nodes are evicted first; 0: never marked
    retained_for: float = 0.0  # retention in seconds from each use on
    transfers: list[Transfer] = field(default_factory=list)
    device_children: int = 0
    upper_children: int = 0
    # Whether the parent counts this node in `device_children` and in `upper_children`. None if the
    # node is not among its parent's children.
    counted_in_parent: tuple[bool, bool] | None = None
    candidate_tiers: tuple[Tier, ...] = NO_TIERS
    first_key: bytes = b""  # namespace and tokens of the first block
    checkpoint: Checkpoint | None = None  # the recurrent state after the last block

    @property
    def end(self) -> int:
        """The position of the first block after this node."""
        return self.start + self.edge.num_blocks

    @property
    def is_held(self) -> bool:
        """True if a lease holds this node or a node below it."""
        return self.leases > 0 or self.held_children > 0

    def way_up(self) -> list[Node]:
        """Return this node and its ancestors, without the root."""
        way, node = [], self
        while node.parent is not None:
            way.append(node)
            node = node.parent
        return way

    def tails(self) -> tuple[Tier, ...]:
        """Return the tiers in which the node is a leaf: it has blocks there, and no child has."""
        edge = self.edge
        device, upper = edge.num_device, edge.num_upper
        on_device = device > 0 and not self.device_children
        in_host = upper > device and not self.upper_children
        return TIERS[on_device, in_host, edge.num_blocks > upper and not self.children]

    @property
    def last_key(self) -> bytes:
        """The key of the last block on the path to this node, or the root key."""
        return self.edge.last_key if self.edge.num_blocks else ROOT_KEY


@dataclass(frozen=True, slots=True, eq=False)
class Position:
    """A point in the tree that a walk reached."""

    node: Node  # the deepest node that was reached
    inside: int
    num_blocks: int  # number of blocks matched from position 0

    @classmethod
    def after(cls, node: Node) -> Position:
        """Return the position at the end of a node."""
        return cls(node, node.edge.num_blocks, node.end)

    @property
    def within(self) -> bool:
        """True if the walk ended inside the node's edge."""
        return self.inside < self.node.edge.num_blocks

    def cut(self, num_blocks: int) -> Position:
        """Return the position on this path that has at most `num_blocks` blocks before it."""
        if num_blocks >= self.num_blocks:
            return self
        node = self.node
        while node.start >= num_blocks and node.parent is not None:
            node = node.parent
        return Position(node, num_blocks - node.start, num_blocks)


@dataclass(frozen=True, slots=True)
class Partial:
    """A block in the tree that begins with the wanted tokens but ends with other tokens."""

    node: Node
    block_id: int
    num_tokens: int
