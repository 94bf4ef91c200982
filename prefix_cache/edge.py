"""A run of whole blocks that lie in one namespace: their tokens, block ids and keys.

Everything here costs a few array operations however long the run is: no loop over blocks.

Knows: arrays. Does not know: the tree it is part of, or whose the blocks are.
"""

from __future__ import annotations

import numpy as np

from prefix_cache.allocator import BlockIds
from prefix_cache.hashing import KEY_BYTES, TokenIds


def common_prefix(left: TokenIds, right: TokenIds) -> int:
    """Return how many leading tokens are equal."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


class Edge:
    """Owns copies of its arrays. Grows at the tail in amortised constant time per block."""

    __slots__ = ("_block_ids", "_block_size", "_keys", "_num_blocks", "_tokens")

    def __init__(self, tokens: TokenIds, block_ids: BlockIds, keys: bytes, block_size: int) -> None:
        """Copy (n * block_size,) tokens, (n,) block ids and n keys of 16 bytes."""
        self._block_size = block_size
        self._num_blocks = len(block_ids)
        self._tokens = tokens.astype(np.int32, copy=True)
        self._block_ids = block_ids.astype(np.int32, copy=True)
        self._keys = bytearray(keys)

    def __len__(self) -> int:
        """Blocks."""
        return self._num_blocks

    @property
    def tokens(self) -> TokenIds:
        """A view of all tokens, (n * block_size,)."""
        return self._tokens[: self._num_blocks * self._block_size]

    @property
    def block_ids(self) -> BlockIds:
        """A view of the block ids, (n,)."""
        return self._block_ids[: self._num_blocks]

    @property
    def keys(self) -> bytes:
        """A copy of the keys, 16 bytes a block."""
        return bytes(self._keys)

    @property
    def last_key(self) -> bytes:
        """The key of the last block."""
        return bytes(self._keys[-KEY_BYTES:])

    def first_block(self) -> TokenIds:
        """A view of the first block's tokens, which a parent finds even a trimmed-out node by."""
        return self._tokens[: self._block_size]

    def block(self, index: int) -> TokenIds:
        """A view of one block's tokens."""
        return self.tokens[index * self._block_size : (index + 1) * self._block_size]

    def common_blocks(self, tokens: TokenIds) -> int:
        """Return how many whole leading blocks are equal to `tokens`."""
        return common_prefix(self.tokens, tokens) // self._block_size

    def append(self, run: Edge) -> None:
        """Add the blocks of `run` at the tail."""
        total = self._num_blocks + len(run)
        if total > len(self._block_ids):
            self._reserve(total + total // 2)
        self._tokens[self._num_blocks * self._block_size : total * self._block_size] = run.tokens
        self._block_ids[self._num_blocks : total] = run.block_ids
        self._keys += run._keys
        self._num_blocks = total

    def trim(self, count: int) -> BlockIds:
        """Drop the last `count` blocks and return their ids."""
        self._num_blocks -= count
        del self._keys[self._num_blocks * KEY_BYTES :]
        return self._block_ids[self._num_blocks : self._num_blocks + count].copy()

    def split(self, at: int) -> Edge:
        """Cut off and return the first `at` blocks; the rest stays here."""
        head = Edge(
            self.tokens[: at * self._block_size],
            self._block_ids[:at],
            bytes(self._keys[: at * KEY_BYTES]),
            self._block_size,
        )
        self._tokens = self.tokens[at * self._block_size :].copy()
        self._block_ids = self.block_ids[at:].copy()
        del self._keys[: at * KEY_BYTES]
        self._num_blocks -= at
        return head

    def _reserve(self, num_blocks: int) -> None:
        tokens = np.empty(num_blocks * self._block_size, dtype=np.int32)
        tokens[: len(self.tokens)] = self.tokens
        block_ids = np.empty(num_blocks, dtype=np.int32)
        block_ids[: self._num_blocks] = self.block_ids
        self._tokens, self._block_ids = tokens, block_ids
