"""The warm-up before the first step: restore the tree, and load the most used blocks."""

from __future__ import annotations

from engine.components import Components
from engine.copies import COPY_WAIT_S

WARM_S = 1.0  # maximum seconds of the warm-up
# Number of blocks loaded at the same time; few, so that requests wait only briefly.
WARM_AT_ONCE = 32
WARM_PART = 2  # blocks from disk may fill 1 / WARM_PART of the device's free blocks


def warm_up(components: Components) -> int:
    """Restore the tree, and load its most used blocks.

    Return the number of restored blocks. Waits at most `WARM_S` seconds. Copies that are still
    running then are completed by the engine's loop.
    """
    cache, copies, now = components.cache, components.copies, components.clock()
    give_up = now + WARM_S
    restored = copies.restore(now)
    left = cache.capacity.pool().free // WARM_PART if restored else 0
    while (left or copies.pending) and components.clock() < give_up:
        num_copies = cache.restart.hottest(min(left, WARM_AT_ONCE - copies.pending))
        left = left - num_copies if num_copies or copies.pending else 0
        copies.start(components.clock())
        components.pause(COPY_WAIT_S)
        copies.complete(components.clock())
    return restored
