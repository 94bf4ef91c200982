"""The recorded flushes that this engine's cache has done.

An engine that was away when a flush was ordered still has the blocks on disk. A gateway therefore
sends all recorded flushes to each engine it connects to. The engine does the flushes that it has
not done. Ids of done flushes are stored beside the blocks on disk. Several gateways send the same
flush, so the number of dropped blocks is kept with the id.

Elsewhere: how a cache is flushed (`cache_orders`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from engine.link.erasure import TierErasure
from storage.disk.file.done_flushes import MOST

# About 30 MB. The file has room for a limited number of flushes. Further flushes are done again on
# each connection.
MOST_KNOWN = 4 * MOST


class Dropped(NamedTuple):
    """The blocks that a flush dropped, and their copies (None: done before this start)."""

    blocks: int = 0
    tiers: tuple[TierErasure, ...] | None = None


_UNKNOWN = Dropped()


class DoneFlushes:
    """The ids of the last `MOST_KNOWN` done flushes, and the blocks that each flush dropped."""

    def __init__(self, done: Iterable[str] = ()) -> None:
        """Start with the flushes `done` before this start."""
        self._done = dict.fromkeys(done, _UNKNOWN)

    def due(self, flushes: Mapping[str, str | None]) -> dict[str, str | None]:
        """Return the flushes that are not done yet."""
        return {one: flow for one, flow in flushes.items() if one not in self._done}

    def note(self, flush_id: str, dropped: Dropped) -> None:
        """Record that a flush is done, and the blocks that it dropped."""
        self._done[flush_id] = dropped
        if len(self._done) > MOST_KNOWN:
            del self._done[next(iter(self._done))]  # at worst the flush is done again

    def dropped(self, flush_id: str) -> Dropped:
        """Return a flush's dropped blocks, none if it was done before this start or never."""
        return self._done.get(flush_id, _UNKNOWN)
