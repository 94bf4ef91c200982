"""What a policy remembers of evicted blocks: how often they had been used (a ghost list).

A ghost is a run of blocks that left together, found by the key of its first. A run of new blocks
is compared with it key by key, so that only blocks that were really here before count as such.

Knows: keys and counts. Does not know: the tree, tokens, or why the blocks went.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from struct import unpack

from prefix_cache.hashing import KEY_BYTES


@dataclass(slots=True, eq=False)
class Ghost:
    """A run of blocks that is gone."""

    keys: bytes
    uses: int  # requests that had read or computed it

    def common_blocks(self, keys: bytes) -> int:
        """How many leading blocks it has in common with a run."""
        low, high = 0, min(len(self.keys), len(keys)) // KEY_BYTES
        while low < high:  # keys are chained: two that are equal have equal keys before them
            middle = (low + high + 1) // 2
            at = slice((middle - 1) * KEY_BYTES, middle * KEY_BYTES)
            low, high = (middle, high) if self.keys[at] == keys[at] else (low, middle - 1)
        return low


class Ghosts:
    """The runs that left last, at 16 bytes a block; the oldest are forgotten."""

    def __init__(self) -> None:
        self._by_first: OrderedDict[bytes, Ghost] = OrderedDict()
        self.num_blocks = 0

    def __len__(self) -> int:
        return len(self._by_first)

    def add(self, keys: bytes, uses: int) -> None:
        """Remember blocks with these keys, which have left together after `uses` uses."""
        first = keys[:KEY_BYTES]
        self._drop(self._by_first.pop(first, None))
        self._by_first[first] = Ghost(keys, uses)
        self.num_blocks += len(keys) // KEY_BYTES

    def uses(self, keys: bytes) -> int:
        """How often the run that begins like this was used; 0: not remembered."""
        ghost = self._by_first.get(keys[:KEY_BYTES])
        return 0 if ghost is None else ghost.uses

    def alike(self, keys: bytes) -> int:
        """How many leading blocks of a run have been used equally often; all of them: 0."""
        total, at = len(keys) // KEY_BYTES, 0
        if self._by_first.keys().isdisjoint(unpack(f"{KEY_BYTES}s" * total, keys)):
            return 0  # as a rule: nothing of it was here before
        uses = self.uses(keys)
        while at < total:
            ghost = self._by_first.get(keys[at * KEY_BYTES : (at + 1) * KEY_BYTES])
            if (0 if ghost is None else ghost.uses) != uses:
                return at
            at += 1 if ghost is None else ghost.common_blocks(keys[at * KEY_BYTES :])
        return 0

    def pop(self, keys: bytes) -> None:
        """Forget the blocks with these keys: they are back."""
        total, at = len(keys) // KEY_BYTES, 0
        while at < total:
            ghost = self._by_first.pop(keys[at * KEY_BYTES : (at + 1) * KEY_BYTES], None)
            self._drop(ghost)
            at += 1 if ghost is None else ghost.common_blocks(keys[at * KEY_BYTES :])

    def keep(self, num_blocks: int) -> None:
        """Forget the oldest until at most `num_blocks` blocks are remembered."""
        while self.num_blocks > num_blocks:
            self._drop(self._by_first.popitem(last=False)[1])

    def _drop(self, ghost: Ghost | None) -> None:
        if ghost is not None:
            self.num_blocks -= len(ghost.keys) // KEY_BYTES
