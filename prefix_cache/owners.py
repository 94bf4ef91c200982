"""How many device blocks each owner holds, and evictions between owners.

Every block that is not free is charged to exactly one owner: the one whose lease took it, in
the tree or not, until it is free again.

Knows: counts by owner. Does not know: which blocks they are.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from prefix_cache.standing import Standing


@dataclass(frozen=True, slots=True)
class OwnerUse:
    """One owner's part, in blocks. An owner that evicts its own blocks counts on both sides."""

    blocks_held: int  # now
    evictions_caused: int  # ever: blocks of anyone that went to make room for this owner
    evictions_suffered: int  # ever: blocks of this owner that went to make room for anyone


class OwnerBooks:
    """The running counts of the device. Blocks held are kept in the device's `Standing`."""

    def __init__(self, device: Standing) -> None:
        self._device = device
        self._caused: defaultdict[str, int] = defaultdict(int)
        self._suffered: defaultdict[str, int] = defaultdict(int)

    def took(self, owner: str, blocks: int) -> None:
        """`owner` was given blocks."""
        self._device.charge(owner, blocks)

    def gave_back(self, owner: str, blocks: int) -> None:
        """Blocks charged to `owner` are free again."""
        self._device.charge(owner, -blocks)

    def evicted(self, *, for_owner: str, of_owner: str, blocks: int) -> None:
        """Blocks of one owner went to make room for another."""
        self._caused[for_owner] += blocks
        self._suffered[of_owner] += blocks

    def by_owner(self) -> dict[str, OwnerUse]:
        """Everyone who ever held a block, or for whom one went."""
        held = self._device.held
        return {
            owner: OwnerUse(held.get(owner, 0), self._caused[owner], self._suffered[owner])
            for owner in sorted({*held, *self._caused, *self._suffered})
        }
