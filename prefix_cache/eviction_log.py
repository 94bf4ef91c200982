"""The last evictions between different owners: whose block, for whom, from where and why.

Equal evictions in a row are one entry. The time of an entry is the last `now` that a caller passed
to the cache, which has no clock of its own.

Knows: the last LOG_LENGTH entries. Does not know: sums (`traffic`).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from prefix_cache.traffic import Eviction

LOG_LENGTH = 1000


class Entry(NamedTuple):
    """Blocks that were evicted in one go."""

    when: float  # seconds, monotonic
    eviction: Eviction
    blocks: int


class EvictionLog:
    """A bounded list; the oldest entries are forgotten."""

    def __init__(self, length: int = LOG_LENGTH) -> None:
        self.now = 0.0  # set by the cache
        self._entries: deque[Entry] = deque(maxlen=length)

    def note(self, eviction: Eviction, blocks: int) -> None:
        """Add an eviction, if blocks of one owner were evicted for another."""
        if not eviction.for_owner or eviction.of_owner == eviction.for_owner:
            return
        last = self._entries[-1] if self._entries else None
        if last is not None and (last.when, last.eviction) == (self.now, eviction):
            self._entries[-1] = last._replace(blocks=last.blocks + blocks)
        else:
            self._entries.append(Entry(self.now, eviction, blocks))

    def entries(self) -> list[Entry]:
        """The newest first."""
        return list(reversed(self._entries))
