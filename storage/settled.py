"""How moves have ended, as a mover reports it.

Knows: moves. Does not know: how they were made, or what follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from storage.move import Move


@dataclass(frozen=True, slots=True)
class Settled:
    """Moves that have ended since the last time."""

    done: tuple[Move, ...] = ()
    failed: tuple[Move, ...] = ()  # nothing arrived; the source is as good as before
    lost: tuple[Move, ...] = ()  # read from disk, and not what was asked for: the source is gone


@dataclass(slots=True)
class Ends:
    """Moves that have ended and not been reported yet."""

    done: list[Move] = field(default_factory=list)
    failed: list[Move] = field(default_factory=list)
    lost: list[Move] = field(default_factory=list)

    def add_failed(self, moves: Iterable[Move]) -> None:
        """Note moves that came to nothing."""
        self.failed.extend(moves)

    def take(self) -> Settled:
        """Report all, once."""
        settled = Settled(tuple(self.done), tuple(self.failed), tuple(self.lost))
        self.done, self.failed, self.lost = [], [], []
        return settled
