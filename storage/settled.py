"""How moves have ended, as a mover reports it.

Knows: moves. Does not know: how they were made, or what follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from storage.move import Move, Tier


@dataclass(frozen=True, slots=True)
class Copied:
    """Blocks that one tier's memory got from another's in one go, and the seconds that took."""

    source: Tier
    target: Tier
    blocks: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Settled:
    """Moves that have ended since the last time."""

    done: tuple[Move, ...] = ()
    failed: tuple[Move, ...] = ()  # nothing arrived; the source is as good as before
    lost: tuple[Move, ...] = ()  # read from disk, and not what was asked for: the source is gone
    copied: tuple[Copied, ...] = ()  # how long copies took, where known: not for the disk
    # Moves to the device that have not ended. Steps launched from now on wait for them by
    # themselves where they have to, and when such a step is over the moves are done.
    promised: tuple[Move, ...] = ()


@dataclass(slots=True)
class Ends:
    """Moves that have ended and not been reported yet."""

    done: list[Move] = field(default_factory=list)
    failed: list[Move] = field(default_factory=list)
    lost: list[Move] = field(default_factory=list)
    copied: list[Copied] = field(default_factory=list)
    promised: list[Move] = field(default_factory=list)

    def add_copied(self, moves: Sequence[Move], seconds: float) -> None:
        """Note moves that one batch of copies has done, all between the same two tiers."""
        self.done.extend(moves)
        one = moves[0]
        self.copied.append(Copied(one.source_tier, one.target_tier, len(moves), seconds))

    def add_failed(self, moves: Iterable[Move]) -> None:
        """Note moves whose copy did not take place."""
        self.failed.extend(moves)

    def take(self) -> Settled:
        """Return all that was noted, and forget it."""
        settled = Settled(
            tuple(self.done),
            tuple(self.failed),
            tuple(self.lost),
            tuple(self.copied),
            tuple(self.promised),
        )
        self.done, self.failed, self.lost, self.copied, self.promised = [], [], [], [], []
        return settled
