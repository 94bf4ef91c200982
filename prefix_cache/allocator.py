"""The free list of the device pool: which block ids nobody has.

Knows: ids from 0 to total - 1. Does not know: who holds the others, or what evicting is.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from prefix_cache.errors import InvariantBroken

BlockIds = npt.NDArray[np.int32]


class BlockAllocator:
    """A stack of free ids; the one freed last is taken first. Fresh, it gives 0, 1, 2, ..."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.num_free = total
        # Its top comes first, so that ids lie in it as they are given. Machine words: an array is
        # indexed by these in a fourth of the time that int32 takes.
        self._stack = np.arange(total, dtype=np.intp)
        self._is_free = np.ones(total, dtype=np.bool_)

    def allocate(self, count: int) -> BlockIds:
        """Take `count` ids, (count,) int32. The caller has looked at `num_free` first."""
        if count > self.num_free:
            raise InvariantBroken(f"{count} blocks asked for, {self.num_free} free")
        top = self.total - self.num_free
        ids = self._stack[top : top + count]
        self.num_free -= count
        self._is_free[ids] = False
        return ids.astype(np.int32)

    def reserve(self, ids: BlockIds) -> None:
        """Take exactly these ids. Raises InvariantBroken, and takes none, if one is not free."""
        if not self._is_free[ids].all():
            raise InvariantBroken(f"a block of {ids.tolist()} is taken twice")
        self._is_free[ids] = False
        free = np.flatnonzero(self._is_free)
        self.num_free = len(free)
        self._stack[self.total - len(free) :] = free

    def free(self, ids: BlockIds) -> None:
        """Give ids back; one that is free already raises InvariantBroken and changes nothing."""
        places, top = ids.astype(np.intp), self.total - self.num_free
        below = top - len(ids)
        if below < 0 or 1 in self._is_free[places].tobytes():
            raise InvariantBroken(f"a block of {ids.tolist()} is freed twice")
        self._is_free[places] = True
        self._stack[below:top] = places
        self.num_free += len(ids)

    def free_ids(self) -> BlockIds:
        """Return a copy of the ids that are free, for checks."""
        return self._stack[self.total - self.num_free :].astype(np.int32)
