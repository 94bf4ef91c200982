"""A removal of branches from the tree in pieces, because a whole branch may take seconds.

Nodes leave one by one, each after the nodes below it. Between two pieces, requests may still find
the nodes that are left, split them, and add nodes. The removal ends when `find` finds nothing more.

Elsewhere: the removal of one node (`removals.py`), and its choice (`cache.py`, `leases`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import chain

from prefix_cache.tiers.removals import Removals
from prefix_cache.tree.node import Node
from prefix_cache.tree.tally import Tally
from prefix_cache.tree.tree import RadixTree

PIECE = 1024


class Pruning:
    """One removal under way. Used by one thread only.

    `blocks` is the number of blocks that the tree has forgotten so far.
    """

    def __init__(
        self,
        removals: Removals,
        find: Callable[[], list[Node]],
        tally: Tally | None = None,
        top_of: Callable[[Node], Node | None] | None = None,
    ) -> None:
        """Remove the nodes that `find` returns, with all nodes below them.

        `find` is called again after these nodes are gone, until it returns none. `top_of` maps each
        node that was found to the node to remove, or to None. `tally` counts the removed copies.
        """
        self.blocks = 0
        self.is_over = False
        self._removals = removals
        self._find = find
        self._tally = tally
        self._top_of = top_of
        self._waiting: list[Node] = []
        # the way down to the present node: each node with those children that were not visited yet
        self._way: list[tuple[Node, list[Node]]] = []

    def advance(self, count: int) -> None:
        """Take up to `count` steps. A step looks at one node or removes one."""
        for _ in range(count):
            if self.is_over:
                return
            if self._way:
                self._step()
            else:
                self._take_next()

    def finish(self) -> int:
        """Remove all nodes that are left. Return the number of blocks that the tree forgot."""
        while not self.is_over:
            self.advance(PIECE)
        return self.blocks

    def _take_next(self) -> None:
        if not self._waiting:
            self._waiting = self._find()
            self.is_over = not self._waiting
            return
        node = self._waiting.pop()
        if node.attached:
            top = node if self._top_of is None else self._top_of(node)
            if top is not None:
                self._enter(top)

    def _enter(self, node: Node) -> None:
        self._way.append((node, [*node.children.values()]))

    def _step(self) -> None:
        node, unvisited = self._way[-1]
        if not node.attached:  # it was evicted since the last step
            self._way.pop()
        elif unvisited:
            child = unvisited.pop()
            if child.attached:
                self._enter(child)
        elif node.children:  # a split or a request has added them
            unvisited.extend(node.children.values())
        else:
            self._way.pop()
            if self._tally is not None:
                self._tally.add_all([node])
            self.blocks += self._removals.forget_leaf(node)


def nodes_in(
    tree: RadixTree, namespaces: Collection[bytes] | None, owner: str | None
) -> list[Node]:
    """Return an owner's nodes in namespaces that begin with one of `namespaces`.

    None stands for all namespaces and for all owners. With neither, only the first nodes of all
    branches are returned.
    """
    if namespaces is None:
        return [*(tree.root.children.values() if owner is None else tree.owned.get(owner, ()))]
    nodes = chain.from_iterable(map(tree.nodes_in, namespaces))
    return [node for node in nodes if owner in (None, node.owner)]
