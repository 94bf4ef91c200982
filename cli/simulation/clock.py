"""When copies end in a replay: at once, or after the time that their bytes take.

Copies between the same two tiers in the same direction run one after the other, all others at the
same time. A request that waits for a copy advances the clock.

Knows: bytes and speeds. Does not know: what is copied, or why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from itertools import count

from prefix_cache.cache import PrefixCache
from storage.move import Move, Tier

Way = tuple[Tier, Tier]


class CopyClock:
    """The time of a replay, and the copies that are under way in it."""

    def __init__(self, seconds_per_block: Mapping[Way, float] | None = None) -> None:
        """`seconds_per_block` for each way; None: every copy ends as soon as it has begun."""
        self.now = 0.0
        self._seconds = seconds_per_block
        self._free_at: dict[Way, float] = {}
        self._serial: Iterator[int] = count()
        self._under_way: list[tuple[float, int, tuple[Move, ...]]] = []

    def arrive(self, at: float, cache: PrefixCache) -> float:
        """Advance to `at`, if it is later than now; settle copies that have ended. Returns `at`."""
        self._begin(cache)
        while self._under_way and self._under_way[0][0] <= at:
            self._settle_next(cache)
        self.now = max(self.now, at)
        return at

    def wait(self, cache: PrefixCache) -> bool:
        """Advance to the end of the next copies; False if none are under way."""
        self._begin(cache)
        if not self._under_way:
            return False
        self._settle_next(cache)
        return True

    def _begin(self, cache: PrefixCache) -> None:
        moves = cache.take_plan().moves
        if not moves:
            return
        if self._seconds is None:
            heappush(self._under_way, (self.now, next(self._serial), moves))
            return
        by_way: dict[Way, list[Move]] = {}
        for move in moves:
            by_way.setdefault((move.source_tier, move.target_tier), []).append(move)
        for way, batch in by_way.items():
            start = max(self.now, self._free_at.get(way, 0.0))
            self._free_at[way] = end = start + len(batch) * self._seconds.get(way, 0.0)
            heappush(self._under_way, (end, next(self._serial), tuple(batch)))

    def _settle_next(self, cache: PrefixCache) -> None:
        end, _, moves = heappop(self._under_way)
        self.now = max(self.now, end)
        cache.settle(done=moves)
