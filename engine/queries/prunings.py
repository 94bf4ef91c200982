"""The prunings under way in one engine, each done in pieces between steps.

Nothing else of the engine waits long for them: all together take at most `SLICE_S` seconds in each
iteration of the loop. They take turns, so the deletion of a large cache does not delay others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from engine.sequences.sequence import Sequence
from prefix_cache.tiers.pruning import Pruning

SLICE_S = 0.004
AT_ONCE = 16  # nodes that one pruning removes before the next has its turn, about 1 ms

Then = Callable[[Collection[Sequence]], None]  # called at the end with all accepted sequences


class Prunings:
    """The prunings under way. Used by one thread only. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._under_way: deque[tuple[Pruning, Then]] = deque()

    def __bool__(self) -> bool:
        """Return whether a pruning is under way."""
        return bool(self._under_way)

    def add(self, pruning: Pruning, then: Then, alive: Collection[Sequence]) -> None:
        """Begin a pruning, and call `then` after its end. Most end at once."""
        self._advance(pruning, then, alive)

    def advance(self, alive: Collection[Sequence]) -> None:
        """Remove nodes for at most about `SLICE_S` seconds. `alive` are all accepted sequences."""
        if not self._under_way:
            return
        give_up = self._clock() + SLICE_S
        while self._under_way and self._clock() < give_up:
            self._advance(*self._under_way.popleft(), alive)

    def _advance(self, pruning: Pruning, then: Then, alive: Collection[Sequence]) -> None:
        pruning.advance(AT_ONCE)
        if pruning.is_over:
            then(alive)
        else:
            self._under_way.append((pruning, then))
