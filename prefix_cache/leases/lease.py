"""A lease: a running sequence's hold on cached and private KV blocks.

Ownership, by position in `block_ids`:

    0 ........ matched ......... num_shared .......... num_blocks
    |          |  T  T  D  D  T  |  private            |
    | the tree's: read only,     | this lease alone    |
    | kept by holding `node`,    | writes them         |
    | which ends at num_shared   |                     |

`PrefixCache.commit` moves `num_shared` to the right as blocks fill. A block before the new
`num_shared` enters the tree (T) unless the tree has an equal block (D). A D block stays this
lease's own, because launched steps still read it. `duplicates` has the positions of D blocks.

A release frees the private blocks and the D blocks, and ends the hold on `node`. The tree's blocks
are freed by eviction. If a flush or a discard has detached them, they are freed with the last lease
that holds them.

If a part of the prefix lay in a lower tier, it is being copied to slots on the device. The lease is
`ready` when all its blocks have arrived. If a block does not arrive, the lease has `failed` and can
only be released.

A lease on a detached node commits no more blocks. A lease is released exactly once. Only
`PrefixCache` changes a lease.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from prefix_cache.errors import LeaseError
from prefix_cache.leases.lease_states import LeaseStates
from prefix_cache.namespace import NamespacePath
from prefix_cache.tree.edge import BlockIds
from prefix_cache.tree.node import Node
from storage.move import Move


@dataclass(slots=True, eq=False)
class Lease:
    """A lease of one sequence's blocks.

    Readers use `blocks`, `cached_tokens`, `moves`, `ready`, `failed`, `num_written`, `first_reads`.
    """

    path: NamespacePath
    owner: str  # the owner who is charged for the blocks that the lease adds
    shares: bool
    block_ids: BlockIds  # device slots; the first num_blocks are valid
    num_blocks: int
    num_shared: int
    node: Node
    cached_tokens: int  # number of tokens whose KV was cached when the lease was taken
    moves: tuple[Move, ...]  # copies to make before the lease's first step
    writer: str = ""  # the request's label; blocks without a label are not counted
    # Numbers of blocks that this request is the first to find, by the label of their writer.
    first_reads: dict[str, int] = field(default_factory=dict)
    num_written: int = 0  # number of blocks that the lease put in the tree under its label
    released: bool = False
    is_part: bool = False
    loads: int = 0  # number of runs of blocks that are still loading
    failed: bool = False
    first_added: int | None = None  # position of the first block that this lease added
    # runs [start, end) of the positions of duplicate blocks
    duplicates: list[tuple[int, int]] = field(default_factory=list)
    states: LeaseStates | None = None

    @property
    def blocks(self) -> BlockIds:
        """A view of the valid device slots, in order of position."""
        return self.block_ids[: self.num_blocks]

    @property
    def ready(self) -> bool:
        """True if all cached tokens of the lease are on the device."""
        return not self.loads and not self.failed

    def check_open(self) -> None:
        """Raise LeaseError if the lease has been released."""
        if self.released:
            raise LeaseError("the lease has been released")

    def own_blocks(self) -> BlockIds:
        """Return the slots of duplicate and private blocks, which are freed with the lease."""
        if not self.duplicates:
            return self.block_ids[self.num_shared : self.num_blocks]
        own = [*self.duplicates, (self.num_shared, self.num_blocks)]
        return np.concatenate([self.block_ids[start:end] for start, end in own])

    def append(self, block_ids: BlockIds) -> None:
        """Add private blocks at the tail, in amortised constant time per block."""
        total = self.num_blocks + len(block_ids)
        if total > len(self.block_ids):
            grown = np.empty(total + total // 2, dtype=np.int32)
            grown[: self.num_blocks] = self.blocks
            self.block_ids = grown
        self.block_ids[self.num_blocks : total] = block_ids
        self.num_blocks = total

    def add_duplicates(self, start: int, end: int) -> None:
        """Record that the blocks of positions [start, end) duplicate blocks of the tree."""
        if self.duplicates and self.duplicates[-1][1] == start:
            start = self.duplicates.pop()[0]
        self.duplicates.append((start, end))

    def note_added(self, position: int) -> None:
        """Record that this lease put the block at `position` in the tree."""
        if self.first_added is None or position < self.first_added:
            self.first_added = position

    def added(self) -> list[tuple[int, int]]:
        """Return the runs [start, end) of positions whose blocks this lease put in the tree."""
        start, runs = self.first_added, []
        if start is None:
            return []
        for other, end in self.duplicates:
            if other > start:
                runs.append((start, other))
            start = max(start, end)
        return runs if start >= self.num_shared else [*runs, (start, self.num_shared)]

    @property
    def num_added(self) -> int:
        """An upper bound on the number of blocks that this lease put in the tree."""
        return 0 if self.first_added is None else self.num_shared - self.first_added
