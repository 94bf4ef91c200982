"""A count of nodes' copies, by tier, before a flush gives up these copies.

A block has a copy in each tier that holds it, so there are more copies than blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prefix_cache.tree.node import Node
from storage.move import Tier


class Tally:
    """The numbers of whole copies of blocks and recurrent states in each tier."""

    def __init__(self) -> None:
        self.blocks: Counter[Tier] = Counter()
        self.states: Counter[Tier] = Counter()

    def add_all(self, nodes: Iterable[Node]) -> None:
        """Count the copies of these nodes."""
        for node in nodes:
            for tier in Tier:
                self.blocks[tier] += node.edge.num_copies(tier)
            if node.checkpoint is not None:
                self.states.update(node.checkpoint.copies.keys())
