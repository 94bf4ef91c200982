"""How many blocks each owner has written into the cache, and how many of them were ever read.

A block counts as read once a request, of any owner, has found it in the tree; a sequence that
resumes after a preemption reads its own blocks. It does not matter in which tier a block lies, or
whether it was evicted since: so the counts tell an owner nothing about other owners' evictions.

Blocks that an earlier engine left on disk count as neither written nor read.

Knows: counts by owner, and for each node how many of its first blocks have been read. Does not
know: by whom or when.
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
