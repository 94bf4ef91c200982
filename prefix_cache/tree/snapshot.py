"""A snapshot of all KV blocks of the tree, taken in pieces while the tree changes.

A reader applies the pieces and all changes (`changes`) in their order. After the last piece the
reader has the tree's blocks. A block that was in the tree at the start is in a piece, unless a
change has reported that the block left. Every later block is in the changes.

A node may be split between the visit of its parent and its own visit: its first blocks then belong
to a new node above it. The snapshot remembers the position where the parent ended. A piece has all
blocks from this position on, including blocks of the new nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefix_cache.tree.changes import ChangeLog, TreeChange
from prefix_cache.tree.node import Node
from prefix_cache.tree.tree import RadixTree

NODE_COST = 8  # the cost of visiting a node, in blocks whose keys are copied


@dataclass(slots=True)
class _Siblings:
    nodes: list[Node]
    start: int
    done: int = 0


class Snapshot:
    """A pass over a tree, parents first. Used by one thread only."""

    def __init__(self, tree: RadixTree) -> None:
        self._way = [_Siblings(list(tree.root.children.values()), 0)]

    @property
    def is_over(self) -> bool:
        """True if all blocks were taken."""
        return not self._way

    def take(self, blocks: int) -> list[TreeChange]:
        """Return the next piece: whole nodes with about `blocks` blocks, as additions."""
        piece, left = ChangeLog(most_keys=1 << 62), blocks
        while self._way and left > 0:
            siblings = self._way[-1]
            if siblings.done == len(siblings.nodes):
                self._way.pop()
                continue
            node = siblings.nodes[siblings.done]
            siblings.done += 1
            left -= NODE_COST + _add(node, siblings.start, piece)
            if node.attached and node.children:
                self._way.append(_Siblings(list(node.children.values()), node.end))
        return piece.take() or []


def _add(node: Node, start: int, piece: ChangeLog) -> int:
    parts, blocks = [], 0
    while node.end > start and node.parent is not None:
        parts.append(node)
        node = node.parent
    for part in reversed(parts):
        if part.attached:
            first = max(start - part.start, 0)
            piece.added(part.edge, first)
            blocks += part.edge.num_blocks - first
    return blocks
