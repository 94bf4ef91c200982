"""The sequences that wait in the queue until their constraints are ready.

Elsewhere: the making of constraints (`engine.grammars`).
"""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import EngineError
from engine.sequences.sequence import Sequence


class Unready:
    """The accepted sequences that wait for their constraints. Used by one thread only."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """Add a waiting sequence."""
        self._sequences.append(sequence)

    def take(self, is_alive: Callable[[Sequence], bool]) -> list[tuple[Sequence, EngineError]]:
        """Unblock sequences whose constraint is ready. Return those whose constraint failed.

        Sequences that are no longer alive are dropped.
        """
        waiting, self._sequences = self._sequences, []
        failed = list[tuple[Sequence, EngineError]]()
        for sequence in waiting:
            constraint = sequence.constraint
            if constraint is None or not is_alive(sequence):
                continue
            if constraint.error is not None:
                failed.append((sequence, constraint.error))
            elif constraint.is_ready:
                sequence.awaits_constraint = False
            else:
                self._sequences.append(sequence)
        return failed
