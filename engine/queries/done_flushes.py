"""The recorded flushes that this engine's cache has done.

An engine that did not run when a flush was ordered still has the blocks on disk. A gateway
therefore sends all recorded flushes to each engine to which it connects. The engine does those that
it has not done. Ids of done flushes are stored on disk, next to the blocks. Several gateways may
send the same flush, so the number of dropped blocks is remembered with the id.

Elsewhere: the flush itself (`cache_orders`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from engine.link.erasure import TierErasure
from storage.disk.file.done_flushes import MOST

# The maximum number of remembered ids, about 30 MB. The file has room for fewer. Flushes that are
# not remembered are done again on each connection.
MOST_KNOWN = 4 * MOST


class Dropped(NamedTuple):
    """The number of blocks that a flush dropped, and what each tier erased (None: not known)."""

    blocks: int = 0
    tiers: tuple[TierErasure, ...] | None = None


_UNKNOWN = Dropped()


class DoneFlushes:
    """The ids of the last `MOST_KNOWN` done flushes, and the number of blocks each has dropped."""

    def __init__(self, done: Iterable[str] = ()) -> None:
        """Start with the flushes that were `done` before this start of the engine."""
        self._done = dict.fromkeys(done, _UNKNOWN)

    def due(self, flushes: Mapping[str, str | None]) -> dict[str, str | None]:
        """Return the flushes that are not done yet."""
        return {one: flow for one, flow in flushes.items() if one not in self._done}

    def note(self, flush_id: str, dropped: Dropped) -> None:
        """Record that a flush is done, and the blocks that it dropped."""
        self._done[flush_id] = dropped
        if len(self._done) > MOST_KNOWN:
            del self._done[next(iter(self._done))]  # forget the oldest; at worst it is done again

    def dropped(self, flush_id: str) -> Dropped:
        """Return a flush's dropped blocks. Those of a flush before this start are unknown."""
        return self._done.get(flush_id, _UNKNOWN)
