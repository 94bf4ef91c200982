"""Which replica has which blocks, and in which tier: what their engines say, and nothing else.

A replica that has a block has all blocks before it, and none before it in a slower tier. So how
much of a prompt it has is found by a binary search over the prompt's block keys:

    keys of the prompt   k0  k1  k2  k3  k4  k5  k6  k7
    one replica has       device     | host  | -  -  -         Found(4, 2, 0)

That holds for what an engine has told in full. Within a snapshot, or where a collision of keys has
mixed two blocks up, an answer may be too long or too short: that costs a miss, or a copy, and
never more, since the engine compares tokens.

Knows: names, keys, tiers. Does not know: tokens, tenants, or what a tier costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from engine.link.cache_events import CacheEvents, Cleared, Removed, TierName
from gateway.routing.prompt import SHORT, Keys, keys_of

TIERS: tuple[TierName, ...] = ("device", "host", "disk")  # the fastest first
_LEVEL = {tier: level for level, tier in enumerate(TIERS)}
_ON_DEVICE, _ON_DISK = _LEVEL["device"], _LEVEL["disk"]


class Found(NamedTuple):
    """What a replica has of a prompt, in blocks from its beginning on and in this order."""

    device: int = 0
    host: int = 0
    disk: int = 0

    @property
    def blocks(self) -> int:
        """In whichever tier."""
        return self.device + self.host + self.disk


NOTHING = Found()


class CacheIndex:
    """The blocks of all replicas. Belongs to one event loop."""

    def __init__(self) -> None:
        self._levels: dict[str, dict[int, int]] = {}  # by replica and block

    def blocks(self, replica: str) -> int:
        """How many blocks it has, as far as is known."""
        return len(self._levels.get(replica, ()))

    def apply(self, replica: str, events: CacheEvents) -> None:
        """Take in what a replica has said. A block that is told twice is there once."""
        levels = self._levels.setdefault(replica, {})
        for change in events.changes:
            if isinstance(change, Cleared):
                levels = self._levels[replica] = {}
            elif isinstance(change, Removed):
                for block in _shortened(change.keys):
                    levels.pop(block, None)
            else:
                levels.update(dict.fromkeys(_shortened(change.keys), _LEVEL[change.tier]))

    def forget(self, replica: str) -> None:
        """Nothing is known of it any more."""
        self._levels.pop(replica, None)

    def find(self, keys: Keys, replicas: Iterable[str]) -> dict[str, Found]:
        """What each of the replicas has of a prompt; those that have nothing are left out."""
        if not keys:
            return {}
        first, known = keys[0] & SHORT, self._levels
        found: dict[str, Found] = {}
        blocks = 1
        for replica in replicas:
            levels = known.get(replica)
            if levels is not None and first in levels:
                blocks = _count(levels, keys, len(keys) // 2, _ON_DISK, blocks)
                found[replica] = _by_tier(levels, keys, blocks)
        return found


def _by_tier(levels: dict[int, int], keys: Keys, blocks: int) -> Found:
    """Where the first `blocks` blocks lie, all of which are there."""
    if levels.get(keys[2 * blocks - 2] & SHORT, _ON_DISK) == _ON_DEVICE:
        return Found(blocks)  # as a rule
    device = _count(levels, keys, blocks, _ON_DEVICE, 1)
    upper = _count(levels, keys, blocks, _ON_DISK - 1, device)
    return Found(device, upper - device, blocks - upper)


def _count(levels: dict[int, int], keys: Keys, end: int, slowest: int, guess: int) -> int:
    """How many of the first `end` blocks are in the tier `slowest` or in a faster one.

    It is looked first whether there are `guess`: replicas often have the same of a prompt.
    """
    low, high, looks = 0, end, [guess - 1, guess]
    while low < high:
        middle = looks.pop() if looks else (low + high) // 2
        if low <= middle < high:
            level = levels.get(keys[2 * middle] & SHORT)
            if level is None or level > slowest:
                high = middle
            else:
                low = middle + 1
    return low


def _shortened(block_keys: bytes) -> list[int]:
    return [key & SHORT for key in keys_of(block_keys)[::2]]
