"""Counts, by owner, of the KV blocks that were written, and that were never read.

A block counts as read once a request of any owner has found it in the tree. A sequence that resumes
after a preemption also reads its own blocks. The block's tier and later evictions do not matter. So
the counts tell an owner nothing about other owners' evictions.

A request may have an opaque label. The first request that finds a block gets the label of the
request that wrote it. So the caller can count by label, even across restarts of this process.

Blocks that were on disk at the start count as neither written nor read, and have no label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prefix_cache.tree.node import Node


class ReuseAccounting:
    """The running counts of written and read blocks since the start."""

    def __init__(self) -> None:
        self._written: Counter[str] = Counter()
        self._read: Counter[str] = Counter()

    def wrote(self, owner: str, blocks: int) -> None:
        """Count new blocks of `owner` in the tree."""
        self._written[owner] += blocks

    def found(self, way: Iterable[Node]) -> dict[str, int]:
        """Count all blocks of these nodes as read, because a request has found the nodes.

        Returns the number of blocks that no request had found before, by the label of their writer.
        """
        first: dict[str, int] = {}
        for current in way:
            unread = current.edge.num_blocks - current.num_read
            if unread > 0:
                self._read[current.owner] += unread
                if current.writer:
                    first[current.writer] = first.get(current.writer, 0) + unread
                current.num_read += unread
        return first

    def written(self, owner: str) -> int:
        """Return the number of blocks that `owner` has put into the cache."""
        return self._written[owner]

    def unread(self, owner: str) -> int:
        """Return the number of blocks written by `owner` that no request has found."""
        return self._written[owner] - self._read[owner]
