"""Digests of blocks in host memory: made when a block has come down, compared before it leaves.

What lies on disk is sealed. Host memory is not: a stray write, a copy to a wrong slot or a bit that
flips would come back as KV. Of each batch of copies as many blocks are digested as CHECKED_BYTES
hold, since the owner thread waits for it: small batches are checked whole, of large ones a part.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import xxhash
from torch import Tensor

CHECKED_BYTES = 4 << 20  # bytes of one batch that are digested: some 0.4 ms


class HostDigests:
    """The digests of some blocks of the host tier. One owner thread."""

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
        """Digest the first of these blocks, whose copies have ended."""
        for slot in islice(slots, self._at_once):
            self._digests[slot] = self._digest(slot)

    def damaged(self, slots: Iterable[int]) -> set[int]:
        """Return the blocks that are not as they were digested, among the first with a digest."""
        known = islice((slot for slot in slots if slot in self._digests), self._at_once)
        return {slot for slot in known if self._digest(slot) != self._digests[slot]}

    def _digest(self, slot: int) -> int:
        return xxhash.xxh3_64_intdigest(self._memory[slot].numpy().data)
