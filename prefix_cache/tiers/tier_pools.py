"""The tiers' sizes, their free slots, and the owner charged for each used slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from prefix_cache.errors import InvariantBroken
from prefix_cache.eviction.quota_usage import QuotaUsage
from prefix_cache.tree.edge import BlockIds
from storage.move import DEVICE_TIER, Tier


@dataclass(frozen=True, slots=True)
class Tiers:
    """The sizes in blocks of the tiers below the device, 0 for a missing tier.

    Slots of recurrent states lie after the slots of blocks. Each state takes `state_blocks` of
    them.
    """

    host_blocks: int = 0
    disk_blocks: int = 0
    max_disk_writes: int = 64  # maximum number of writes under way
    ahead: int = 0  # device blocks that a plan keeps free for the next requests
    host_states: int = 0
    disk_states: int = 0
    state_blocks: int = 1

    def sizes(self, device_blocks: int) -> dict[Tier, int]:
        """Return the number of blocks of each tier, including the device."""
        return dict(zip(Tier, (device_blocks, self.host_blocks, self.disk_blocks), strict=True))

    def states(self, device_states: int) -> dict[Tier, int]:
        """Return the number of state slots of the device and of each lower tier that has any."""
        sizes = zip(Tier, (device_states, self.host_states, self.disk_states), strict=True)
        return {tier: states for tier, states in sizes if states or tier is DEVICE_TIER}

    def erased_with(self, disk_state: int) -> range:
        """Return the block slots on disk that one recurrent state takes."""
        start = self.disk_blocks + disk_state * self.state_blocks
        return range(start, start + self.state_blocks)

    def present(self) -> tuple[Tier, ...]:
        """Return the device and the lower tiers that exist."""
        return tuple(tier for tier, blocks in self.sizes(1).items() if blocks)


class BlockAllocator:
    """A stack of free slots. The slot that was freed last is taken first."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.num_free = total
        # The array begins with the top of the stack. An array is indexed four times as fast by
        # machine words as by int32.
        self._stack = np.arange(total, dtype=np.intp)
        self._is_free = np.ones(total, dtype=np.bool_)

    def allocate(self, count: int) -> BlockIds:
        """Allocate `count` ids, (count,) int32. The caller has checked `num_free`."""
        if count > self.num_free:
            raise InvariantBroken(f"{count} blocks asked for, {self.num_free} free")
        top = self.total - self.num_free
        ids = self._stack[top : top + count]
        self.num_free -= count
        self._is_free[ids] = False
        return ids.astype(np.int32)

    def reserve(self, ids: BlockIds) -> None:
        """Allocate exactly these ids. Raises InvariantBroken if any of them is not free."""
        if not self._is_free[ids].all():
            raise InvariantBroken(f"a block of {ids.tolist()} is taken twice")
        self._is_free[ids] = False
        free = np.flatnonzero(self._is_free)
        self.num_free = len(free)
        self._stack[self.total - len(free) :] = free

    def free(self, ids: BlockIds) -> None:
        """Free ids. Raises InvariantBroken, and frees none, if any of them is already free."""
        places, top = ids.astype(np.intp), self.total - self.num_free
        below = top - len(ids)
        if below < 0 or 1 in self._is_free[places].tobytes():
            raise InvariantBroken(f"a block of {ids.tolist()} is freed twice")
        self._is_free[places] = True
        self._stack[below:top] = places
        self.num_free += len(ids)

    def free_ids(self) -> BlockIds:
        """Return a copy of the free ids. Used by checks."""
        return self._stack[self.total - self.num_free :].astype(np.int32)


class Pools:
    """The slots of all tiers, and the owners' charges for them. Initially all slots are free."""

    def __init__(self, num_blocks: int, tiers: Tiers) -> None:
        sizes = tiers.sizes(num_blocks)
        self.allocators = {tier: BlockAllocator(sizes[tier]) for tier in tiers.present()}
        self.device = self.allocators[DEVICE_TIER]
        self.quota_usages: Mapping[Tier, QuotaUsage] = {
            tier: QuotaUsage(blocks) for tier, blocks in sizes.items()
        }

    def take(self, tier: Tier, count: int, owner: str) -> BlockIds:
        """Take `count` slots and charge `owner`. The caller has made room for them."""
        self.quota_usages[tier].charge(owner, count)
        return self.allocators[tier].allocate(count)

    def give_back(self, tier: Tier, slots: BlockIds, owner: str) -> None:
        """Free slots that are charged to `owner`."""
        self.allocators[tier].free(slots)
        self.quota_usages[tier].charge(owner, -len(slots))
