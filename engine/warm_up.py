"""Before an engine's first step: the tree is restored from disk, and its hottest blocks are loaded.

Knows: for how long a start waits for that. Does not know: what lies on disk, or requests.
"""

from __future__ import annotations

from engine.copies import COPY_WAIT_S
from engine.parts import Parts

WARM_S = 1.0  # the longest that a start waits for the tree to be restored and its hottest blocks
WARM_AT_ONCE = 32  # blocks under way: few, so that none delays a request when the time is up
WARM_PART = 2  # one device block in this many is filled with blocks from disk


def warm_up(parts: Parts) -> int:
    """Restore the tree and load its hottest blocks; returns how many blocks were restored.

    Waits for `WARM_S` at most. What is still under way then is settled by the engine's steps.
    """
    cache, copies, now = parts.cache, parts.copies, parts.clock()
    give_up = now + WARM_S
    restored = copies.restore(now)
    left = cache.pool().free // WARM_PART if restored else 0
    while (left or copies.pending) and parts.clock() < give_up:
        begun = cache.restart.hottest(min(left, WARM_AT_ONCE - copies.pending))
        left = left - begun if begun or copies.pending else 0
        copies.start(parts.clock())
        parts.pause(COPY_WAIT_S)
        copies.settle(parts.clock())
    return restored
