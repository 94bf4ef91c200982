"""The order of eviction of checkpoints: first the checkpoint that saves least for its age.

A checkpoint saves the tokens from the checkpoint before it on its path up to itself: without it a
request computes these again. All take the same bytes. GreedyDual (Young, 1994; Cao and Irani,
1997) joins that to recency without a clock of seconds:

    priority = blocks saved + the policy's clock at the last use
    clock    = the priority of the last checkpoint evicted

So a checkpoint that is not used sinks while others are evicted, and one that saves ten times as
much sinks ten times as long. Each tier has a policy of its own, which orders the copies there.

Knows: nodes with checkpoints. Does not know: slots, owners, or who reads a checkpoint.
"""

from __future__ import annotations

from prefix_cache.errors import InvariantBroken
from prefix_cache.eviction.eviction_policy import EvictionPolicy, SortKey
from prefix_cache.tree.match import last_checkpoint
from prefix_cache.tree.node import Checkpoint, Node, Position, StateCopy
from storage.move import Tier


class CheckpointWorth(EvictionPolicy):
    """Policy that keeps the checkpoints that save the most blocks, and those used lately."""

    def __init__(self, tier: Tier) -> None:
        """Order the copies in `tier`."""
        self.clock = 0.0  # blocks
        self._tier = tier

    def sort_key(self, node: Node) -> SortKey:
        """Return the priority that the node's checkpoint had when it became a candidate."""
        return (self._copy(node).priority,)

    def admits(self, node: Node, victim: Node) -> bool:
        """Return whether `node`'s checkpoint, new in this tier, is worth more than `victim`'s."""
        return self.priority(victim) < self.clock + saved_blocks(node)

    def fresh(self) -> CheckpointWorth:
        """Return a policy whose clock is at zero."""
        return CheckpointWorth(self._tier)

    def used(self, node: Node) -> None:
        """Note that a request starts from the node's checkpoint, or has just made it."""
        self._copy(node).since = self.clock

    def evicted(self, node: Node) -> None:
        """Move the clock on to the priority of a checkpoint that is evicted."""
        self.clock = max(self.clock, self._copy(node).priority)

    def priority(self, node: Node) -> float:
        """Return the present priority; it has grown if the checkpoint before has been evicted."""
        return self._copy(node).since + saved_blocks(node)

    def _copy(self, node: Node) -> StateCopy:
        return checkpoint_of(node).copies[self._tier]


def saved_blocks(node: Node) -> int:
    """Count the blocks from the checkpoint before `node`'s on its path up to its end."""
    before = 0 if node.parent is None else last_checkpoint(Position.after(node.parent)).num_blocks
    return node.end - before


def checkpoint_of(node: Node) -> Checkpoint:
    """Return the node's checkpoint; raise InvariantBroken without one."""
    if node.checkpoint is None:
        raise InvariantBroken("a node without a checkpoint is used as if it had one")
    return node.checkpoint
