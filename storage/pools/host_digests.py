"""Digests of KV blocks in host memory: made when a block arrives, compared before it leaves.

Records on disk are sealed, but host memory is not. Without digests, damage by a stray write, a copy
to a wrong slot or a flipped bit would be read as KV. The owner thread waits for the digests, so
only the first CHECKED_BYTES of each batch of copies are digested.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import xxhash
from torch import Tensor

CHECKED_BYTES = 4 << 20  # maximum bytes of a batch to digest, which takes some 0.4 ms


class HostDigests:
    """The digests of some blocks of the host tier. Used by one thread only."""

    def __init__(self, memory: Tensor) -> None:
        """Digest blocks of `memory`, (num_blocks, block_bytes) uint8 in host memory."""
        self._memory = memory
        self._digests: dict[int, int] = {}
        self._at_once = max(CHECKED_BYTES // memory.shape[1], 1)

    def forget(self, slots: Iterable[int]) -> None:
        """Forget blocks that are about to be overwritten."""
        for slot in slots:
            self._digests.pop(slot, None)

    def arrived(self, slots: Iterable[int]) -> None:
        """Digest the first CHECKED_BYTES of these blocks, whose copies have ended."""
        for slot in islice(slots, self._at_once):
            self._digests[slot] = self._digest(slot)

    def damaged(self, slots: Iterable[int]) -> set[int]:
        """Return the blocks that have changed since they were digested.

        Checks at most CHECKED_BYTES, in blocks that have a digest.
        """
        known = islice((slot for slot in slots if slot in self._digests), self._at_once)
        return {slot for slot in known if self._digest(slot) != self._digests[slot]}

    def _digest(self, slot: int) -> int:
        return xxhash.xxh3_64_intdigest(self._memory[slot].numpy().data)
