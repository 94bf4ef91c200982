"""Which blocks anybody ever found: by owner, how many were written and how many read since.

A block counts as read from the first request on that finds it in the tree, whosever that is; a
sequence that goes on after it was preempted reads its own. Where a block is, or whether it has
left, does not matter: so nobody can tell from these counts what others pushed out.

Blocks that an engine before has left on disk were written by nobody here, and are never read.

Knows: counts by owner, and of a node how many of its first blocks have been read. Does not know:
who reads, or when.
"""

from __future__ import annotations

from collections import Counter

from prefix_cache.node import Node


class Readership:
    """The running counts, in blocks since the start."""

    def __init__(self) -> None:
        self._written: Counter[str] = Counter()
        self._read: Counter[str] = Counter()

    def wrote(self, owner: str, blocks: int) -> None:
        """Blocks of `owner` that the tree did not have have entered it."""
        self._written[owner] += blocks

    def found(self, node: Node) -> None:
        """A request has found all blocks of `node` and of those on the way to it."""
        current = node
        while current.parent is not None:
            blocks = current.edge.num_blocks
            if blocks > current.num_read:
                self._read[current.owner] += blocks - current.num_read
                current.num_read = blocks
            current = current.parent

    def written(self, owner: str) -> int:
        """Blocks that `owner` has put into the cache."""
        return self._written[owner]

    def unread(self, owner: str) -> int:
        """Those of them that no request has found."""
        return self._written[owner] - self._read[owner]
