"""Drafts from the cached tree: what followed this very prefix before.

A sequence holds a node of the tree by its lease, at most a few blocks before its last token, so
nothing has to be searched from the root. What stands below it is copied some way ahead, and
followed without a look at the tree until it is used up, differs, or its node has left the tree. A
request that does not use the cache gets no drafts from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.drafting.draft import Draft
from engine.sequences.sequence import Sequence
from prefix_cache.tree.continuations import continuation
from prefix_cache.tree.node import Node
from prefix_cache.tree.tree import RadixTree

AHEAD = 256  # tokens that are copied at once


@dataclass(slots=True)
class _Followed:
    """Copied tokens after the first `known` ones, and the last node that they came from."""

    known: int
    ahead: memoryview  # int32
    place: int
    node: Node
    trims: int  # `Node.trims` when they were copied

    @property
    def holds(self) -> bool:
        return self.node.attached and self.node.trims == self.trims


class TreeWalk:
    """Drafter that follows the most used path below a sequence's place in the tree."""

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._followed: dict[Sequence, _Followed] = {}
        # The node below which a sequence found nothing, and its number of children then.
        self._nothing: dict[Sequence, tuple[Node, int]] = {}

    def propose(self, sequence: Sequence, most: int) -> Draft | None:
        followed = self._followed.get(sequence)
        if followed is None or not _follow(followed, sequence, most):
            followed = self._find(sequence)
        if followed is None:
            return None
        token_ids = followed.ahead[followed.place : followed.place + most].tolist()
        return Draft(tuple(token_ids), "tree")

    def ended(self, sequence: Sequence) -> None:
        self._followed.pop(sequence, None)
        self._nothing.pop(sequence, None)

    def _find(self, sequence: Sequence) -> _Followed | None:
        """Walk down from the sequence's node; None if the tree has nothing after its tokens."""
        self._followed.pop(sequence, None)
        lease = sequence.lease
        if lease is None or not lease.shares or not sequence.use_cache:
            return None
        start = lease.node
        seen = (start, len(start.children))
        if not seen[1] or not start.attached or self._nothing.get(sequence) == seen:
            return None
        found = continuation(self._tree, sequence.path, sequence.token_ids, start, AHEAD)
        if found is None:
            self._nothing[sequence] = seen
            return None
        ahead, node = found
        followed = _Followed(sequence.num_tokens, ahead.data, 0, node, node.trims)
        self._followed[sequence] = followed
        return followed


def _follow(followed: _Followed, sequence: Sequence, most: int) -> bool:
    """Move past the sequence's new tokens; False where they differ or too few tokens are left."""
    known, place = sequence.num_tokens, followed.place
    count = known - followed.known
    if count:
        new = sequence.tokens.data[followed.known : known]
        if followed.ahead[place : place + count] != new:
            return False
        followed.known, followed.place = known, place + count
    left = len(followed.ahead) - followed.place
    is_whole = len(followed.ahead) < AHEAD  # there was no more to copy
    return followed.holds and (left >= most or (is_whole and left > 0))
