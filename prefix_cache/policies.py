"""The eviction policies by name: plain LRU (`eviction`), and the others, which are here.

These give a node its worth when a request that used it ends, and do not change it later: a leaf
that is not used keeps its place. Others move ahead of it, because worth is counted from `pace`, the
number of blocks that have entered the tree so far; that is a policy's only clock.

    lru      keeps what was used last
    slru     segmented LRU: what was used twice counts as used later than it was
    tinylfu  slru with a frequency sketch: blocks that return after an eviction count as used
             before, and a lower tier takes only what is asked for at least as often as its victim
    value    keeps what is likeliest to be used again for the room it takes; the chance is learned
             for each number of uses
    saving   value, times the cost of computing a block again: a deep block costs more

Knows: nodes, keys, counts. Does not know: tiers, tenants, time.
"""

from __future__ import annotations

from collections.abc import Callable

from prefix_cache.eviction import EvictionPolicy, LeastRecentlyUsed, SortKey
from prefix_cache.ghosts import Ghosts
from prefix_cache.hashing import KEY_BYTES
from prefix_cache.node import Node
from prefix_cache.sketch import FrequencySketch

SKETCH_WIDTH = 1 << 16
DOUBLE_COST_TOKENS = 30_000  # the position from which attention is half of an 8B model's work
GHOSTS = 8  # blocks remembered for each that is here


class _Paced(EvictionPolicy):
    """Counts blocks in and out, and puts nodes in the order of their worth."""

    def __init__(self) -> None:
        self.pace = 0  # blocks that have entered
        self.live = 0  # blocks in the tree: as good as its size, once it is full

    def sort_key(self, node: Node) -> SortKey:
        """Worth, then time of last use, then depth in blocks."""
        return (node.worth, node.last_used, -node.start - node.edge.num_blocks)

    def entered(self, node: Node) -> None:
        """Give it the worth of a node nobody else has used."""
        node.worth = self._worth(node, node.edge.num_blocks)

    def restored(self, node: Node) -> None:
        """Count it in; its worth is that of its uses before."""
        self.pace += len(node.edge)
        self.live += len(node.edge)
        node.worth = self._worth(node, len(node.edge))

    def ended(self, node: Node, added: int) -> None:
        """Give all on the way the worth of a node just used."""
        self.pace += added
        self.live += added
        current = node
        while current.parent is not None:
            current.worth = self._worth(current, added)
            current = current.parent

    def left(self, node: Node, keys: bytes) -> None:  # noqa: ARG002
        """There are so many blocks less."""
        self.live -= len(keys) // KEY_BYTES
        if self.live < 0:
            self.live = 0

    def _worth(self, node: Node, added: int) -> float:
        """What a node is worth right after its use by a request that added `added` blocks."""
        raise NotImplementedError


class Segmented(_Paced):
    """Two segments in one order: a second use is worth the time in which a part is replaced."""

    def __init__(self, protected: float = 0.8) -> None:
        """`protected`: the head start of a second use, as a share of all blocks in the tree."""
        super().__init__()
        self._protected = protected

    def _worth(self, node: Node, added: int) -> float:  # noqa: ARG002
        again = node.hits + node.seen > 0
        return self.pace + (self._protected * self.live if again else 0.0)


class FrequencyAdmission(Segmented):
    """Segments that remember in a sketch what has left, and admission by frequency."""

    def __init__(self, protected: float = 0.8, width: int = SKETCH_WIDTH) -> None:
        super().__init__(protected)
        self._sketch = FrequencySketch(width)

    def admits(self, node: Node, victim: Node) -> bool:
        """The one asked for more often lately; of two alike, the one worth more."""
        ours, theirs = self._frequency(node), self._frequency(victim)
        return super().admits(node, victim) if ours == theirs else ours > theirs

    def entered(self, node: Node) -> None:
        """It may have been here before."""
        node.seen = self._sketch.count(node.edge.key(0))
        self._sketch.add(node.edge.keys)
        super().entered(node)

    def used(self, node: Node) -> None:
        """Count it."""
        self._sketch.add(node.edge.keys)

    def _frequency(self, node: Node) -> int:
        return self._sketch.count(node.last_key)


class ReuseTable:
    """How often blocks used n times were used again, n = 1, 2, ... and "many"."""

    def __init__(self, most: int = 6, trust: float = 30.0) -> None:
        """`trust`: blocks that a number of uses must have been seen with to count for itself."""
        self._most = most
        self._trust = trust
        self._stamped = [0.0] * (most + 1)
        self._again = [0.0] * (most + 1)
        self._all_stamped, self._all_again = 40.0, 10.0  # one in four, until it is known better

    def stamp(self, uses: int, blocks: int) -> None:
        """Count `blocks` blocks that have now been used `uses` times."""
        self._stamped[uses if uses < self._most else self._most] += blocks
        self._all_stamped += blocks

    def again(self, uses: int, blocks: int) -> None:
        """Count `blocks` blocks that had been used `uses` times and were used once more."""
        self._again[uses if uses < self._most else self._most] += blocks
        self._all_again += blocks

    def chance(self, uses: int) -> float:
        """How likely a block used `uses` times is to be used again."""
        uses = uses if uses < self._most else self._most
        mean = self._all_again / self._all_stamped
        return (self._again[uses] + self._trust * mean) / (self._stamped[uses] + self._trust)


class ExpectedValue(_Paced):
    """Keeps the nodes that are likeliest to be used again for the room they take.

    Worth is a time, counted in blocks that enter: a node stays for `patience` x its chance of reuse
    x the blocks in the tree. Nodes used only once count as used earlier, by `haste` blocks for each
    block that came with them: a long prompt takes much room for one chance.
    """

    def __init__(
        self, patience: float = 4.0, haste: float = 6.0, double_cost_at: float | None = None
    ) -> None:
        """`double_cost_at`: at which block attention costs as much as all else; None: never."""
        super().__init__()
        self._patience = patience
        self._haste = haste
        self._double_cost_at = double_cost_at
        self._table = ReuseTable()
        self._ghosts = Ghosts()

    def new_blocks(self, keys: bytes) -> int:
        """Blocks that have been used equally often make a node."""
        return self._ghosts.alike(keys)

    def may_grow(self, node: Node) -> bool:
        """Only while it is as new as what is added."""
        return node.hits + node.seen == 0

    def entered(self, node: Node) -> None:
        """Remember its uses before it left, which this is one more than."""
        node.seen = self._ghosts.uses(node.edge.key(0))
        if node.seen:
            self._table.again(node.seen, node.edge.num_blocks)
            self._ghosts.pop(node.edge.keys)
        super().entered(node)

    def used(self, node: Node) -> None:
        """Learn that a node with this number of uses was used again."""
        self._table.again(node.hits + node.seen, node.edge.num_blocks)

    def ended(self, node: Node, added: int) -> None:
        """Learn how many blocks there are of each number of uses."""
        current = node
        while current.parent is not None:
            self._table.stamp(current.hits + current.seen + 1, current.edge.num_blocks)
            current = current.parent
        super().ended(node, added)

    def left(self, node: Node, keys: bytes) -> None:
        """Remember how often it was used."""
        super().left(node, keys)
        self._ghosts.add(keys, node.hits + node.seen + 1)
        self._ghosts.keep(GHOSTS * (self.live or 1))

    def _worth(self, node: Node, added: int) -> float:
        uses = node.hits + node.seen + 1
        stays = self._patience * self._table.chance(uses) * self.live
        if self._double_cost_at is not None:
            stays *= 1.0 + node.start / self._double_cost_at
        if uses == 1:
            earlier = self._haste * added
            stays -= earlier if earlier < self.live else self.live
        return self.pace + stays


def _lru(block_size: int) -> EvictionPolicy:  # noqa: ARG001
    return LeastRecentlyUsed()


def _slru(block_size: int) -> EvictionPolicy:  # noqa: ARG001
    return Segmented()


def _tinylfu(block_size: int) -> EvictionPolicy:  # noqa: ARG001
    return FrequencyAdmission()


def _value(block_size: int) -> EvictionPolicy:  # noqa: ARG001
    return ExpectedValue()


def _saving(block_size: int) -> EvictionPolicy:
    return ExpectedValue(double_cost_at=DOUBLE_COST_TOKENS / block_size)


POLICIES: dict[str, Callable[[int], EvictionPolicy]] = {
    "lru": _lru,
    "slru": _slru,
    "tinylfu": _tinylfu,
    "value": _value,
    "saving": _saving,
}


def by_name(name: str, block_size: int = 16) -> EvictionPolicy:
    """Return a fresh policy with its default settings, for blocks of `block_size` tokens.

    Raises ValueError, which lists the names, for an unknown one.
    """
    if name not in POLICIES:
        raise ValueError(f"no policy {name!r}; known are {', '.join(POLICIES)}")
    return POLICIES[name](block_size)
