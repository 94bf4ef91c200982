"""The index of the replicas' blocks and their tiers, by the engines' cache events.

A replica that has a KV block has all blocks before the block, none of them in a slower tier. A
binary search over the prompt's block keys finds how much of the prompt a replica has:

    keys of the prompt   k0  k1  k2  k3  k4  k5  k6  k7
    one replica has       device     | host  | -  -  -         Found(6), Lower(2, 0)

This order holds once an engine's events are complete. Within a snapshot, or if two blocks have the
same key, an answer may be too long or too short. This costs only a miss or a copy, since the engine
compares tokens.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from engine.link.cache_events import CacheEvents, Cleared, Removed, TierName
from gateway.routing.prompt import SHORT, Keys, keys_of
from prefix_cache.hashing import KEY_BYTES

TIERS: tuple[TierName, ...] = ("device", "host", "disk")  # the fastest tier first
_LEVEL = {tier: level for level, tier in enumerate(TIERS)}
_ON_DEVICE, _ON_DISK = _LEVEL["device"], _LEVEL["disk"]
_STEPS = 64
# maximum bytes of keys that are shortened one by one; `keys_of` is faster only for more keys
_FEW_BYTES = 32 * KEY_BYTES


class FoundBlocks(msgspec.Struct, frozen=True, gc=False):
    """The part of a prompt that a replica has: its first `blocks` blocks, in any tiers."""

    blocks: int = 0
    is_lower: bool = False  # whether some blocks lie below the device tier (`CacheIndex.lower`)


class Lower(NamedTuple):
    """The counts of found blocks in slower tiers. These are the last of the found blocks."""

    host: int
    disk: int


NOTHING = FoundBlocks()


class Levels(dict[int, int]):
    """The tier of each block of one replica, by the block's key. A missing block counts as slow."""

    def __missing__(self, key: int) -> int:
        return _ON_DISK


class CacheIndex:
    """The blocks of all replicas. Belongs to one event loop."""

    def __init__(self) -> None:
        self._levels: dict[str, Levels] = {}

    def blocks(self, replica: str) -> int:
        """Count the known blocks of a replica."""
        return len(self._levels.get(replica, ()))

    def apply(self, replica: str, events: CacheEvents) -> None:
        """Apply a replica's cache events. A block that is reported twice counts once."""
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
        """Remove all blocks of a replica."""
        self._levels.pop(replica, None)

    def find(self, keys: Keys, replicas: Iterable[str]) -> dict[str, FoundBlocks]:
        """Find the part of a prompt that each replica has. Replicas without any part are left out.

        For each replica the previous replica's answer is tried first, since the two are often
        equal.
        """
        first, levels_of = keys[0] if keys else None, self._levels.get
        having = [
            (replica, levels)
            for replica in replicas
            if (levels := levels_of(replica)) is not None and first in levels
        ]
        return _found(keys, having) if having else {}

    def lower(self, replica: str, keys: Keys, blocks: int) -> Lower:
        """Count the blocks in slower tiers among a replica's first `blocks` found blocks.

        The count is exact to a 64th of the prompt, since an exact count would not be worth the
        time. Each 64th counts as lying in the slowest tier of its blocks.
        """
        level_of = self._levels[replica].__getitem__
        step = max(len(keys) // _STEPS, 1)
        ends = keys[step - 1 : blocks : step]
        on_device = bisect_right(ends, _ON_DEVICE, key=level_of)
        lower = blocks - step * on_device
        if level_of(keys[blocks - 1]) < _ON_DISK:
            return Lower(lower, 0)
        disk = blocks - step * bisect_right(ends, _ON_DISK - 1, on_device, key=level_of)
        return Lower(lower - disk, disk)


def _found(keys: Keys, having: Sequence[tuple[str, Levels]]) -> dict[str, FoundBlocks]:
    """Find the part of a prompt that each replica has. Each must have the prompt's first block.

    The search runs for each replica. It is one function that calls only `bisect`, since more calls
    would take as long as the search.
    """
    total, backwards = len(keys), keys[::-1]
    found: dict[str, FoundBlocks] = {}
    # the answer for the previous replica
    blocks, here, lower = 1, FoundBlocks(1), FoundBlocks(1, is_lower=True)
    for replica, levels in having:
        has_more = blocks < total and keys[blocks] in levels
        if has_more or keys[blocks - 1] not in levels:
            blocks = total - bisect_left(backwards, True, key=levels.__contains__)
            here, lower = FoundBlocks(blocks), FoundBlocks(blocks, is_lower=True)
        found[replica] = here if levels[keys[blocks - 1]] == _ON_DEVICE else lower
    return found


def _shortened(block_keys: bytes) -> list[int]:
    if len(block_keys) < _FEW_BYTES:
        whole = len(block_keys) // KEY_BYTES * KEY_BYTES
        return [key & SHORT for key in memoryview(block_keys)[:whole].cast("Q")[::2]]
    return [*keys_of(block_keys)]
