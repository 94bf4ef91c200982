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
        self._stack: BlockIds = np.arange(total, dtype=np.int32)[::-1].copy()
        self._is_free = np.ones(total, dtype=np.bool_)

    def allocate(self, count: int) -> BlockIds:
        """Take `count` ids, (count,) int32. The caller has looked at `num_free` first."""
        if count > self.num_free:
            raise InvariantBroken(f"{count} blocks asked for, {self.num_free} free")
        left = self.num_free - count
        ids = self._stack[left : self.num_free][::-1].copy()
        self.num_free = left
        self._is_free[ids.astype(np.intp)] = False  # a fourth of the time that int32 takes
        return ids

    def reserve(self, ids: BlockIds) -> None:
        """Take exactly these ids. Raises InvariantBroken, and takes none, if one is not free."""
        if not self._is_free[ids].all():
            raise InvariantBroken(f"a block of {ids.tolist()} is taken twice")
        self._is_free[ids] = False
        free = np.flatnonzero(self._is_free)[::-1]
        self.num_free = len(free)
        self._stack[: len(free)] = free

    def free(self, ids: BlockIds) -> None:
        """Give ids back; one that is free already raises InvariantBroken and changes nothing."""
        num_free, places = self.num_free, ids.astype(np.intp)
        total = num_free + len(ids)
        if total > self.total or 1 in self._is_free[places].tobytes():
            raise InvariantBroken(f"a block of {ids.tolist()} is freed twice")
        self._is_free[places] = True
        self._stack[num_free:total] = ids[::-1]
        self.num_free = total

    def free_ids(self) -> BlockIds:
        """Return a copy of the ids that are free, for checks."""
        return self._stack[: self.num_free].copy()
