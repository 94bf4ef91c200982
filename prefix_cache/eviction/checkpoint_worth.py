"""The order of eviction of state checkpoints, by the tokens that they save and by their age.

A checkpoint saves the tokens between the previous checkpoint on its path and itself. Without it, a
request computes these tokens again. All checkpoints take the same bytes. GreedyDual (Young, 1994;
Cao and Irani, 1997) combines the saved tokens with recency, without a clock of seconds:

    priority = worth in blocks + the policy's clock at the last use
    clock    = the priority of the last checkpoint evicted

So an unused checkpoint loses rank while other checkpoints are evicted. A checkpoint that saves ten
times as much loses rank ten times as slowly. Each tier has its own policy.

A conversation leaves a checkpoint at each turn, and later turns start from each checkpoint only
once. So the worth of a checkpoint is divided by eight once the only request that started from it
has made a later checkpoint.
"""

from __future__ import annotations

from prefix_cache.errors import InvariantBroken
from prefix_cache.eviction.eviction_policy import EvictionPolicy, SortKey
from prefix_cache.tree.match import last_checkpoint
from prefix_cache.tree.node import Checkpoint, Node, Position, StateCopy
from storage.move import Tier

# factor of a checkpoint's worth once its conversation has gone on
PASSED_PART = 1 / 8


class CheckpointWorth(EvictionPolicy):
    """A policy that keeps state checkpoints that save many blocks or were used lately."""

    def __init__(self, tier: Tier) -> None:
        self.clock = 0.0  # the priority of the last evicted checkpoint, in blocks
        self._tier = tier

    def sort_key(self, node: Node) -> SortKey:
        return (self._copy(node).priority,)

    def admits(self, node: Node, victim: Node) -> bool:
        return self.priority(victim) < self.clock + worth(node)

    def fresh(self) -> CheckpointWorth:
        return CheckpointWorth(self._tier)

    def used(self, node: Node) -> None:
        """Record that a request starts from the node's state checkpoint or has just made it."""
        self._copy(node).since = self.clock

    def evicted(self, node: Node) -> None:
        """Raise the policy's clock to the priority of the evicted state checkpoint of `node`."""
        self.clock = max(self.clock, self._copy(node).priority)

    def priority(self, node: Node) -> float:
        """Return the present priority of the node's state checkpoint.

        The priority grows when the previous checkpoint on the path is evicted.
        """
        return self._copy(node).since + worth(node)

    def _copy(self, node: Node) -> StateCopy:
        return checkpoint_of(node).copies[self._tier]


def worth(node: Node) -> float:
    """Return the number of blocks that the node's state checkpoint probably saves a request."""
    return saved_blocks(node) * (PASSED_PART if _is_passed(node) else 1)


def _is_passed(node: Node) -> bool:
    """Return whether the only request that started here has made a later state checkpoint."""
    checkpoint = checkpoint_of(node)
    if checkpoint.starts != 1:
        return False
    below = list(node.children.values())
    while below:
        one = below.pop()
        if one.checkpoint is not None:
            return True
        below += one.children.values()
    return False


def saved_blocks(node: Node) -> int:
    """Count the blocks between the previous state checkpoint on the path and the end of `node`."""
    before = 0 if node.parent is None else last_checkpoint(Position.after(node.parent)).num_blocks
    return node.end - before


def checkpoint_of(node: Node) -> Checkpoint:
    """Return the node's state checkpoint. Raises InvariantBroken if it has none."""
    if node.checkpoint is None:
        raise InvariantBroken("a node without a checkpoint is used as if it had one")
    return node.checkpoint
