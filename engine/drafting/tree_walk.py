"""The drafts from the cached tree: the tokens that followed the same prefix before.

The walk starts at the node that the sequence's lease holds, not at the root. Up to AHEAD tokens
below the node are copied together. Drafts come from the copy until it is used up, the sequence
differs from it, or the tree no longer has the node. A request that does not use the cache gets no
drafts from the tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engine.drafting.acceptance import LONGEST_MATCH
from engine.drafting.draft import DraftSource
from engine.sequences.sequence import Sequence
from prefix_cache.leases.lease import Lease
from prefix_cache.tree.continuations import continuation
from prefix_cache.tree.node import Node
from prefix_cache.tree.tree import RadixTree

AHEAD = 256  # maximum number of tokens that are copied together


@dataclass(slots=True)
class _Followed:
    """The tokens copied from the tree after the first `known` tokens, and the last node read."""

    known: int
    ahead: memoryview
    place: int
    node: Node
    trims: int

    def follow(self, tokens: memoryview, known: int, most: int) -> bool:
        place, count = self.place, known - self.known
        if count:
            if self.ahead[place : place + count] != tokens[self.known : known]:
                return False
            self.known, self.place = known, place + count
        left = len(self.ahead) - self.place
        is_whole = len(self.ahead) < AHEAD
        return self.holds and (left >= most or (is_whole and left > 0))

    @property
    def holds(self) -> bool:
        return self.node.attached and self.node.trims == self.trims


class TreeWalk:
    """The most used path below a sequence's place in the tree. Implements `Drafter`."""

    __slots__ = ("_followed", "_lease", "_nothing", "_num_children", "_sequence", "_tree")
    source: ClassVar[DraftSource] = "tree"
    matched: ClassVar[int] = LONGEST_MATCH

    def __init__(self, tree: RadixTree, sequence: Sequence, lease: Lease) -> None:
        self._tree, self._sequence, self._lease = tree, sequence, lease
        self._followed: _Followed | None = None
        # The last node at which the walk found no tokens, and the node's number of children then.
        self._nothing: Node | None = None
        self._num_children = 0

    def draft(self, known: int, most: int) -> tuple[int, ...]:
        """Return the tokens that followed the same prefix before."""
        followed, sequence = self._followed, self._sequence
        if followed is None:
            node = self._lease.node
            if node is self._nothing and len(node.children) == self._num_children:
                return ()
        if followed is None or not followed.follow(sequence.tokens.data, known, most):
            followed = self._followed = self._find(known)
        if followed is None:
            return ()
        return tuple(followed.ahead[followed.place : followed.place + most].tolist())

    def _find(self, known: int) -> _Followed | None:
        start, sequence = self._lease.node, self._sequence
        if not start.attached or not sequence.use_cache:
            return None
        if start is self._nothing and len(start.children) == self._num_children:
            return None
        count = len(start.children)
        ids = sequence.token_ids
        found = continuation(self._tree, sequence.path, ids, start, AHEAD) if count else None
        if found is None:
            self._nothing, self._num_children = start, count
            return None
        ahead, node = found
        return _Followed(known, ahead.data, 0, node, node.trims)


def tree_walk(tree: RadixTree, sequence: Sequence) -> TreeWalk | None:
    """Return a source that walks below the sequence's node, or None without use of the cache."""
    lease = sequence.lease
    if lease is None or not sequence.use_cache:
        return None
    return TreeWalk(tree, sequence, lease)
