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

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from engine.link.cache_events import CacheEvents, Cleared, Removed, TierName
from gateway.routing.prompt import SHORT, Keys, keys_of
from prefix_cache.hashing import KEY_BYTES

TIERS: tuple[TierName, ...] = ("device", "host", "disk")  # the fastest first
_LEVEL = {tier: level for level, tier in enumerate(TIERS)}
_ON_DEVICE, _ON_DISK = _LEVEL["device"], _LEVEL["disk"]
_STEPS = 64  # of a prompt
_FEW_BYTES = 32 * KEY_BYTES  # of keys that are shortened sooner one by one


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


class Levels(dict[int, int]):
    """The tier of each block of one replica, by its key; what is not there is taken for slow."""

    def __missing__(self, key: int) -> int:
        return _ON_DISK


class CacheIndex:
    """The blocks of all replicas. Belongs to one event loop."""

    def __init__(self) -> None:
        self._levels: dict[str, Levels] = {}  # by replica and block

    def blocks(self, replica: str) -> int:
        """How many blocks it has, as far as is known."""
        return len(self._levels.get(replica, ()))

    def apply(self, replica: str, events: CacheEvents) -> None:
        """Take in what a replica has said. A block that is told twice is there once."""
        levels = self._levels.setdefault(replica, Levels())
        for change in events.changes:
            if isinstance(change, Cleared):
                levels = self._levels[replica] = Levels()
            elif isinstance(change, Removed):
                for block in _shortened(change.keys):
                    levels.pop(block, None)
            else:
                levels.update(dict.fromkeys(_shortened(change.keys), _LEVEL[change.tier]))

    def forget(self, replica: str) -> None:
        """Nothing is known of it any more."""
        self._levels.pop(replica, None)

    def find(self, keys: Keys, replicas: Iterable[str]) -> dict[str, Found]:
        """What each of the replicas has of a prompt; those that have nothing are left out.

        Where a slower tier begins is told to a 64th of the prompt: it makes a small part of a small
        difference. The answer of the replica before is tried first: they often have the same.
        """
        found: dict[str, Found] = {}
        if not keys:
            return found
        first, backwards, here = keys[0], keys[::-1], Found(1)
        step = max(len(keys) // _STEPS, 1)  # blocks
        for replica in replicas:
            levels = self._levels.get(replica)
            if levels is not None and first in levels:
                if not _has_just(levels, keys, here.device):
                    here = Found(len(keys) - _missing(levels, backwards))
                on_device = levels[keys[here.device - 1]] == _ON_DEVICE  # as a rule
                found[replica] = here if on_device else _by_tier(levels, keys, step, here.device)
        return found


def _has_just(levels: Levels, keys: Keys, blocks: int) -> bool:
    """Whether the block before this place is there, and the one after it is not."""
    return keys[blocks - 1] in levels and (blocks == len(keys) or keys[blocks] not in levels)


def _missing(levels: Levels, backwards: Keys) -> int:
    """How many of a prompt's blocks are not there, whose keys come from the last one on."""
    return bisect_left(backwards, True, key=levels.__contains__)


def _by_tier(levels: Levels, keys: Keys, step: int, blocks: int) -> Found:
    """Where the first `blocks` blocks lie, all of which are there; looks at the last of each step.

    A step is in the slowest tier of its blocks.
    """
    ends = keys[step - 1 : blocks : step]
    device = step * bisect_right(ends, _ON_DEVICE, key=levels.__getitem__)
    if levels[keys[blocks - 1]] < _ON_DISK:
        return Found(device, blocks - device)
    upper = step * bisect_right(ends, _ON_DISK - 1, device // step, key=levels.__getitem__)
    return Found(device, upper - device, blocks - upper)


def _shortened(block_keys: bytes) -> list[int]:
    if len(block_keys) < _FEW_BYTES:
        whole = len(block_keys) // KEY_BYTES * KEY_BYTES
        return [key & SHORT for key in memoryview(block_keys)[:whole].cast("Q")[::2]]
    return [*keys_of(block_keys)]
