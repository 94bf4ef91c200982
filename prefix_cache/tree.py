"""The radix tree over blocks. Its edges carry the namespace, so it says who may find what.

    root
     |- published: system prompt           edges of one path may run published -> group
     |   |- tenant a: conversation 1       -> tenant -> salt; an edge never crosses from
     |   `- tenant b: the same tokens      one namespace into another
     `- tenant a: a prompt of its own

Tokens decide: a child is found by its namespace and the tokens of its first block, and the rest
of its edge is compared token by token, whole arrays at a time.

Knows: structure, and which children begin on which tier. Does not know: which blocks are free,
what is evicted when, or of leases and copies under way more than it carries along when it splits
a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from sortedcontainers import SortedDict

from prefix_cache.edge import TOKEN_BYTES, Edge, common_prefix
from prefix_cache.hashing import ROOT_KEY, TokenIds
from prefix_cache.namespace import Namespace, NamespacePath
from storage.move import Move, Tier

NOWHERE = (False, False)


class Children:
    """A node's children, by namespace and first block; made only when there is one."""

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: SortedDict[bytes, Node] | None = None

    def __len__(self) -> int:
        return len(self._by_key) if self._by_key else 0

    def __iter__(self) -> Iterator[Node]:
        return iter(self._by_key.values()) if self._by_key else iter(())

    def get(self, key: bytes) -> Node | None:
        """Return the child with exactly this key."""
        return self._by_key.get(key) if self._by_key else None

    def put(self, key: bytes, child: Node) -> None:
        """Add a child, or put another node in the place of one."""
        if self._by_key is None:
            self._by_key = SortedDict()
        self._by_key[key] = child

    def remove(self, key: bytes) -> None:
        """Forget the child with this key."""
        if self._by_key is not None:
            del self._by_key[key]

    def neighbours(self, key: bytes) -> list[Node]:
        """Return the children on either side of `key`'s place in byte order.

        No other child has more leading bytes in common with `key` than one of these two.
        """
        if not self._by_key:
            return []
        at = self._by_key.bisect_left(key)
        around = range(max(at - 1, 0), min(at + 1, len(self._by_key)))
        return [self._by_key.peekitem(index)[1] for index in around]


@dataclass(slots=True, eq=False)
class Flight:
    """Copies under way of a run of blocks, from one tier to another.

    No node loses a block of it before all of the copies have ended; then they count as one.
    Positions are counted from the prompt's block 0.
    """

    source: Tier
    target: Tier
    start: int
    end: int
    nodes: list[Node]  # where the blocks lie, in order of position; a split adds one
    for_owner: str  # whom the room is made for, or who wants the blocks
    makes_room: bool  # the blocks are to go from `source` as soon as they lie in `target`
    moves: list[Move]  # in order of position
    open: int  # copies that have not ended
    missed: set[int] = field(default_factory=set)  # positions of blocks that have not arrived
    lost: set[int] = field(default_factory=set)  # those of them that are no good in `source`

    def parts(self) -> Iterator[tuple[Node, int, int]]:
        """Each node with the places [start, end) of its blocks that are being copied."""
        for node in self.nodes:
            yield node, max(self.start - node.start, 0), min(self.end, node.end) - node.start

    def node_at(self, position: int) -> Node:
        """The node in which the block at `position` lies."""
        return next(node for node in self.nodes if position < node.end)


@dataclass(slots=True, eq=False)
class Node:
    """A run of blocks behind its parent's; identity is the object itself."""

    namespace: Namespace
    edge: Edge
    owner: str  # who computed these blocks
    start: int  # position of the first block, counted from the prompt's block 0
    parent: Node | None  # None for the root alone
    last_used: float
    children: Children = field(default_factory=Children)
    leases: int = 0  # leases whose deepest node is this one
    held_children: int = 0  # held nodes whose parent this is, detached ones too
    attached: bool = True  # False: flushed or discarded; no match finds it any more
    hits: int = 0  # requests that found it since it was put in
    num_read: int = 0  # of its first blocks: found by a request since they were put in
    seen: int = 0  # uses of its blocks before that, as far as the policy remembers
    worth: float = 0.0  # the policy's own number, set when the node is used
    kept: bool = True  # False: copying it down has failed since it was last used
    flights: list[Flight] = field(default_factory=list)
    device_children: int = 0  # children whose first block is on the device
    upper_children: int = 0  # children whose first block is on the device or in the host
    told: tuple[bool, bool] | None = None  # in which of these two its parent counts it; None:
    # it is not among its parent's children
    offered: bool = False  # whether it may be among the candidates of some tier
    first_key: bytes = b""  # namespace and tokens of the first block: its parent finds it by this

    @property
    def end(self) -> int:
        """Position of the first block behind this node."""
        return self.start + self.edge.num_blocks

    @property
    def is_held(self) -> bool:
        """Whether a lease holds this node or one below it."""
        return self.leases > 0 or self.held_children > 0

    def is_tail(self, tier: Tier) -> bool:
        """Whether its last blocks in `tier`, and in none above, have none of that sort below."""
        edge = self.edge
        if tier is Tier.DEVICE:
            return edge.num_device > 0 and not self.device_children
        if tier is Tier.HOST:
            return edge.num_upper > edge.num_device and not self.upper_children
        return len(edge) > edge.num_upper and not len(self.children)

    @property
    def last_key(self) -> bytes:
        """The key of the last block on the way here; that of no block for the root."""
        return self.edge.last_key if len(self.edge) else ROOT_KEY


class Position(NamedTuple):
    """How far a walk came."""

    node: Node  # deepest node reached
    inside: int  # blocks of its edge that matched; all of them unless the walk ended within
    num_blocks: int  # blocks matched from position 0

    @property
    def within(self) -> bool:
        """Whether the walk ended inside the node's edge, and not at its end."""
        return self.inside < self.node.edge.num_blocks


@dataclass(frozen=True, slots=True)
class Partial:
    """A block in the tree whose leading tokens are those wanted next, but not all of them."""

    node: Node
    block_id: int
    num_tokens: int


class RadixTree:
    """Nodes and how to find, split, add and remove them."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.root = Node(
            namespace=Namespace(b""),
            edge=Edge(np.empty(0, np.int32), np.empty(0, np.int32), b"", block_size),
            owner="",
            start=0,
            parent=None,
            last_used=0.0,
        )
        self.num_nodes = 0  # the root is not counted

    @property
    def depth(self) -> int:
        """Nodes on the longest path; walks the whole tree."""
        deepest, level = -1, [self.root]
        while level:
            deepest += 1
            level = [child for node in level for child in node.children]
        return deepest

    def nodes(self, top: Node | None = None) -> Iterator[Node]:
        """Yield `top` (or everything but the root), parents first."""
        waiting = list(self.root.children) if top is None else [top]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children)

    def walk(self, path: NamespacePath, tokens: TokenIds, start: Node | None = None) -> Position:
        """Follow whole blocks of `tokens`, which begin at position 0, as far as they are here.

        `start` is a node known to lie on the way; the walk begins behind it.
        """
        node = self.root if start is None else start
        step = TOKEN_BYTES * self.block_size
        first = block = node.end
        last = len(tokens) // self.block_size
        data = tokens[first * self.block_size :].tobytes() if block < last else b""
        while block < last:
            at = (block - first) * step
            child = node.children.get(path.at(block) + data[at : at + step])
            if child is None:
                break
            span_end = min(path.span_end(block) or last, last)
            same = child.edge.common_blocks(data, at, (span_end - first) * step)
            node, block = child, block + same
            if same < child.edge.num_blocks:
                return Position(node, same, block)
        return Position(node, node.edge.num_blocks, block)

    def partial(self, at: Position, path: NamespacePath, tokens: TokenIds) -> Partial | None:
        """Return the block behind `at` that shares most leading tokens, at least one.

        It lies in the namespace that the path goes on in, or in the one that ends there: so a
        prefix whose last tokens fill no block is found whole, where its namespace has them.
        """
        wanted = self._from(tokens, at.num_blocks)
        if self.block_size == 1 or not len(wanted):
            return None  # a block of one token is there as a whole or not at all
        namespaces = {path.at(at.num_blocks), path.at(max(at.num_blocks - 1, 0))}
        if at.within:
            nearby = [(at.node, at.inside)]
        else:
            keys = [namespace + wanted.tobytes() for namespace in namespaces]
            nearby = [(child, 0) for key in keys for child in at.node.children.neighbours(key)]
        found = [
            Partial(
                node,
                int(node.edge.block_ids[index]),
                common_prefix(node.edge.block(index), wanted),
            )
            for node, index in nearby
            if node.namespace in namespaces and index < node.edge.num_device
        ]
        best = max(found, key=lambda partial: partial.num_tokens, default=None)
        return best if best is not None and best.num_tokens > 0 else None

    def split(self, node: Node, at: int) -> Node:
        """Cut `node` behind its first `at` blocks (0 < at < all) and return the new upper part.

        The lower part stays the same object, so what holds it is still right.
        """
        parent = node.parent
        upper = Node(
            namespace=node.namespace,
            edge=node.edge.split(at),
            owner=node.owner,
            start=node.start,
            parent=parent,
            last_used=node.last_used,
            held_children=int(node.is_held),
            attached=node.attached,
            hits=node.hits,
            num_read=min(node.num_read, at),
            seen=node.seen,
            worth=node.worth,
            kept=node.kept,
            told=node.told,
            first_key=node.first_key,
        )
        if parent is not None:
            parent.children.put(upper.first_key, upper)
        node.parent, node.start, node.told = upper, node.start + at, NOWHERE
        node.num_read = max(node.num_read - at, 0)
        node.first_key = node.namespace + node.edge.first_block()
        upper.children.put(node.first_key, node)
        self.tell(node)
        if node.flights:
            _divide_flights(upper, node)
        self.num_nodes += 1
        return upper

    def add(
        self, parent: Node, namespace: Namespace, edge: Edge, *, owner: str, now: float
    ) -> Node:
        """Hang a new leaf below `parent`, which has no child that begins with the same block."""
        first_key = namespace + edge.first_block()
        node = Node(
            namespace, edge, owner, parent.end, parent, now, told=NOWHERE, first_key=first_key
        )
        parent.children.put(node.first_key, node)
        self.tell(node)
        self.num_nodes += 1
        return node

    def tell(self, node: Node) -> bool:
        """Keep the parent's counts right after a node's blocks have changed tiers.

        Returns whether they have changed, so that the parent may have become a tail or ceased to.
        """
        return self._count_in(node, (node.edge.num_device > 0, node.edge.num_upper > 0))

    def unlink(self, node: Node) -> None:
        """Take a node with all below it from its parent's children.

        It still knows its parent, whose blocks come before its own. No matter if it is not among
        the children any more, or an equal one is. `num_nodes` is the caller's to settle.
        """
        if node.parent is not None:
            key = node.first_key
            if node.parent.children.get(key) is node:
                node.parent.children.remove(key)
                self._count_in(node, NOWHERE)
                node.told = None

    def _count_in(self, node: Node, now: tuple[bool, bool]) -> bool:
        if node.told is None or node.told == now or node.parent is None:
            return False
        node.parent.device_children += now[0] - node.told[0]
        node.parent.upper_children += now[1] - node.told[1]
        node.told = now
        return True

    def _from(self, tokens: TokenIds, block: int) -> TokenIds:
        return tokens[block * self.block_size : (block + 1) * self.block_size]


def _divide_flights(upper: Node, lower: Node) -> None:
    """Give each half of a node the copies of its own blocks."""
    upper.flights = [flight for flight in lower.flights if flight.start < upper.end]
    for flight in upper.flights:
        at = flight.nodes.index(lower)
        goes_on = flight.end > upper.end
        flight.nodes[at : at + 1] = [upper, lower] if goes_on else [upper]
    lower.flights = [flight for flight in lower.flights if flight.end > upper.end]
