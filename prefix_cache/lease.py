"""What a running sequence holds of the cache.

Ownership, by position in `block_ids`:

    0 ................ num_shared ................ num_blocks
    | in the tree: read only, | private: this lease alone writes |
    | kept by holding `node`  | them; freed with the lease       |

`PrefixCache.commit` moves `num_shared` to the right as blocks fill and enter the tree. A lease
is released exactly once, by `PrefixCache.release`. Only `PrefixCache` changes a lease.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from prefix_cache.namespace import NamespacePath
from prefix_cache.tree import Node
from storage.move import Move

BlockIds = npt.NDArray[np.int32]


@dataclass(slots=True, eq=False)
class Lease:
    """A sequence's blocks. Readers use `blocks`, `cached_tokens` and `moves`, nothing else."""

    path: NamespacePath
    owner: str  # who is charged with the blocks it adds: a flow
    shares: bool  # False: reads nothing from the tree and commits nothing to it
    block_ids: BlockIds  # slots of the device pool; the first num_blocks are valid
    num_blocks: int
    num_shared: int
    node: Node  # deepest tree node held
    cached_tokens: int  # tokens whose KV was there when the lease was taken
    moves: tuple[Move, ...]  # to be executed before the lease's first step
    released: bool = False

    @property
    def blocks(self) -> BlockIds:
        """A view of the valid block ids, in order of position."""
        return self.block_ids[: self.num_blocks]
