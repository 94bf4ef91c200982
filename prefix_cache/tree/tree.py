"""The radix tree over KV blocks. Each edge has a namespace, which decides who may read it.

    root
     |- published: system prompt           edges of one path may run published -> group
     |   |- tenant a: conversation 1       -> tenant -> salt; an edge never crosses from
     |   `- tenant b: the same tokens      one namespace into another
     `- tenant a: a prompt of its own

A child is found by its namespace and the tokens of its first block. The rest of its edge is
compared token by token, as whole arrays.

The tree does not know which blocks are free or which are evicted next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import TypeVar

import numpy as np
from sortedcontainers import SortedDict

from prefix_cache.hashing import TokenIds
from prefix_cache.namespace import Namespace, NamespacePath
from prefix_cache.tree.changes import ChangeLog
from prefix_cache.tree.edge import TOKEN_BYTES, Edge, common_prefix
from prefix_cache.tree.match import PrefixMatch
from prefix_cache.tree.node import NO_TIERS, Children, Node, Partial, Position
from prefix_cache.tree.residency import MOVING

K = TypeVar("K")
NOWHERE = (False, False)


class RadixTree:
    """A radix tree: finds, splits, adds and removes nodes."""

    def __init__(self, block_size: int, *, needs_state: bool = False) -> None:
        """Create an empty tree.

        With `needs_state`, matched blocks are useful only up to their last state checkpoint.
        """
        self.block_size = block_size
        self.needs_state = needs_state
        self.root = Node(
            namespace=Namespace(b""),
            edge=Edge(np.empty(0, np.int32), np.empty(0, np.int32), b"", block_size),
            owner="",
            start=0,
            parent=None,
            last_used=0.0,
        )
        self.num_nodes = 0
        # The log of changes to the tree, or None until somebody reads it.
        self.changes: ChangeLog | None = None
        # The first nodes of each namespace. The parents of these nodes are the root or in another
        # namespace. Sorted, so that namespaces with the same first bytes are found together.
        self.tops: SortedDict[Namespace, dict[Node, None]] = SortedDict()
        self.owned: dict[str, dict[Node, None]] = {}
        # Called with a node that has left the tree or has lost blocks at its end.
        self.when_shorter: Callable[[Node], None] = _nothing

    @property
    def depth(self) -> int:
        """The number of nodes on the longest path, found by a walk over the whole tree."""
        deepest, level = -1, [self.root]
        while level:
            deepest += 1
            level = [child for node in level for child in node.children.values()]
        return deepest

    def nodes(self, top: Node | None = None) -> Iterator[Node]:
        """Yield `top` and the nodes below it, parents first.

        Without `top`, yields all nodes except the root.
        """
        waiting = list(self.root.children.values()) if top is None else [top]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())

    def nodes_in(self, first: bytes) -> Iterator[Node]:
        """Yield the nodes of all namespaces that begin with these bytes."""
        for namespace in self.tops.irange(first):
            if not namespace.startswith(first):
                return
            for top in self.tops[namespace]:
                yield from (node for node in self.nodes(top) if node.namespace == namespace)

    def walk(self, path: NamespacePath, tokens: TokenIds, start: Node | None = None) -> Position:
        """Follow the whole blocks of `tokens` from position 0 as far as the tree has them.

        `start` is a node that is known to lie on the path. The walk begins after it.
        """
        node = self.root if start is None else start
        step, same = TOKEN_BYTES * self.block_size, node.edge.num_blocks
        block, last = node.start + same, len(tokens) // self.block_size
        span_end, data = block, tokens.data.cast("B")
        while block < last:
            if block == span_end:
                namespace, end = path.span_at(block)
                span_end = last if end is None or end > last else end
            at = block * step
            child = node.children.get(namespace + data[at : at + step])
            if child is None:
                break
            node, same = child, child.edge.common_blocks(data[at : span_end * step])
            block += same
            if same < child.edge.num_blocks:
                break
        return Position(node, same, block)

    def match(
        self, path: NamespacePath, tokens: TokenIds, before: PrefixMatch | None = None
    ) -> PrefixMatch:
        """Return the leading whole blocks of `tokens` that are in the tree.

        `before` is an earlier match of the same path and of tokens with the same beginning. If the
        match still holds, the walk starts at its end.
        """
        known = self._known(path, tokens, before)
        return PrefixMatch.of(known, needs_state=self.needs_state)

    def _known(self, path: NamespacePath, tokens: TokenIds, before: PrefixMatch | None) -> Position:
        if before is None or not before.holds:
            return self.walk(path, tokens)
        most = len(tokens) // self.block_size
        if before.is_in_place and most <= before.known.num_blocks:
            return before.known.cut(most)
        node, most = before.known.node, min(most, before.known.num_blocks)
        while node.end > most and node.parent is not None:
            node = node.parent
        return self.walk(path, tokens, node)

    def partial(
        self, at: Position, path: NamespacePath, tokens: TokenIds, *, stays: bool = False
    ) -> Partial | None:
        """Return the block after `at` that shares the most leading tokens, at least one.

        With `stays`, a block that is being copied down is not returned. Returns None if the model
        needs a recurrent state at the block's end.

        The block is in the namespace in which the path continues or in the namespace that ends
        there. So the last tokens of a published prefix are found even if they do not fill a block.
        In the namespace that ends, tokens from the path's `switch` on count as different.
        """
        if self.block_size == 1 or self.needs_state:
            return None
        wanted = tokens[at.num_blocks * self.block_size :][: self.block_size]
        if not len(wanted):
            return None
        here = path.at(at.num_blocks)
        namespaces = {here, path.at(max(at.num_blocks - 1, 0))}
        before = wanted
        if path.switch is not None:
            before = wanted[: max(path.switch - at.num_blocks * self.block_size, 0)]
        if at.within:
            nearby = [(at.node, at.inside)]
        else:
            keys = [namespace + wanted.tobytes() for namespace in namespaces]
            nearby = [(child, 0) for key in keys for child in at.node.children.neighbours(key)]
        found = [
            Partial(
                node,
                int(node.edge.block_ids[index]),
                common_prefix(node.edge.block(index), wanted if node.namespace == here else before),
            )
            for node, index in nearby
            if node.namespace in namespaces
            and index < node.edge.num_device
            and not (stays and node.edge.states[index] & MOVING)
        ]
        best = max(found, key=lambda partial: partial.num_tokens, default=None)
        return best if best is not None and best.num_tokens > 0 else None

    def split(self, node: Node, at: int) -> Node:
        """Cut `node` after its first `at` blocks, and return the new upper part.

        The lower part stays the same object, so references to `node` stay valid.
        """
        parent = node.parent
        upper = copy(node)
        upper.edge, upper.children, upper.transfers = node.edge.split(at), Children(), []
        upper.num_read, upper.candidate_tiers = min(node.num_read, at), NO_TIERS
        upper.leases, upper.held_children = 0, int(node.is_held)
        upper.device_children = upper.upper_children = 0
        upper.checkpoint = None  # the checkpoint is at the end of the lower part
        if parent is not None:
            parent.children.put(upper.first_key, upper)
            if node in self.tops.get(node.namespace, ()):
                _take_out(self.tops, node.namespace, node)
                self._is_top(upper)
        node.parent, node.start, node.counted_in_parent = upper, node.start + at, NOWHERE
        node.num_read = max(node.num_read - at, 0)
        node.first_key = node.namespace + node.edge.first_block()
        upper.children.put(node.first_key, node)
        self._is_owned(upper)
        self.tell(node)
        if node.transfers:
            _divide_transfers(upper, node)
        self.num_nodes += 1
        return upper

    def add(
        self,
        parent: Node,
        namespace: Namespace,
        edge: Edge,
        *,
        owner: str,
        now: float,
        writer: str = "",
    ) -> Node:
        """Add a leaf below `parent`, which has no child that begins with the same block."""
        node = Node(
            namespace,
            edge,
            owner,
            parent.end,
            parent,
            now,
            writer=writer,
            counted_in_parent=NOWHERE,
            first_key=namespace + edge.first_block(),
        )
        parent.children.put(node.first_key, node)
        if namespace != parent.namespace:
            self._is_top(node)
        self._is_owned(node)
        self.tell(node)
        self.num_nodes += 1
        if self.changes is not None:
            self.changes.added(edge)
        return node

    def left(self, node: Node) -> None:
        """Remove a node that has left the tree from the indexes."""
        _take_out(self.tops, node.namespace, node)
        _take_out(self.owned, node.owner, node)
        self.when_shorter(node)

    def give(self, node: Node, owner: str) -> None:
        """Make `owner` the owner of a node that is in the tree."""
        _take_out(self.owned, node.owner, node)
        node.owner = owner
        self._is_owned(node)

    def _is_top(self, node: Node) -> None:
        self.tops.setdefault(node.namespace, {})[node] = None

    def _is_owned(self, node: Node) -> None:
        self.owned.setdefault(node.owner, {})[node] = None

    def tell(self, node: Node) -> bool:
        """Update the parent's counts after a node's blocks have changed tiers.

        Returns whether the counts have changed. The parent may then have become a leaf of a tier,
        or ceased to be a leaf.
        """
        edge = node.edge
        now = (edge.num_device > 0, edge.num_upper > 0)
        return now != node.counted_in_parent and self._count_in(node, now)

    def unlink(self, node: Node) -> None:
        """Remove a node, with all nodes below it, from its parent's children.

        The node keeps its link to its parent, whose blocks come before the node's. Does nothing if
        the node is not its parent's child. The caller corrects `num_nodes`.
        """
        if node.parent is not None and node.parent.children.get(node.first_key) is node:
            node.parent.children.remove(node.first_key)
            self._count_in(node, NOWHERE)
            node.counted_in_parent = None

    def _count_in(self, node: Node, now: tuple[bool, bool]) -> bool:
        before, parent = node.counted_in_parent, node.parent
        if before is None or parent is None:
            return False
        parent.device_children += now[0] - before[0]
        parent.upper_children += now[1] - before[1]
        node.counted_in_parent = now
        return True


def _nothing(node: Node) -> None:
    del node


def _take_out(index: dict[K, dict[Node, None]], key: K, node: Node) -> None:
    nodes = index.get(key, {})
    if node in nodes:
        del nodes[node]
        if not nodes:
            del index[key]


def _divide_transfers(upper: Node, lower: Node) -> None:
    upper.transfers = [transfer for transfer in lower.transfers if transfer.start < upper.end]
    for transfer in upper.transfers:
        at = transfer.nodes.index(lower)
        goes_on = transfer.end > upper.end
        transfer.nodes[at : at + 1] = [upper, lower] if goes_on else [upper]
    lower.transfers = [transfer for transfer in lower.transfers if transfer.end > upper.end]
