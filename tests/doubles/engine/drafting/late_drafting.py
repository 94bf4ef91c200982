"""The drafting of a server, made before the engine whose tree it reads."""

from __future__ import annotations

from collections.abc import Callable

from engine.drafting.answers import EarlierAnswers
from engine.drafting.composition import choose_drafts
from engine.drafting.draft import Draft, Drafting, NoDrafts
from engine.sequences.sequence import Sequence
from prefix_cache.tree.tree import RadixTree


class LateDrafting:
    """Drafting from all sources, once a tree is attached. Implements `Drafting`."""

    def __init__(self, answers: Callable[[RadixTree], EarlierAnswers]) -> None:
        """Draft from the earlier answers in `answers`."""
        self._answers = answers
        self._chosen: Drafting = NoDrafts()

    def attach(self, tree: RadixTree) -> None:
        """Draft from this tree, as if every step took the same time."""
        self._chosen = choose_drafts(tree, lambda rows: 0.01, answers=self._answers(tree))

    def prepare(self, sequence: Sequence) -> None:
        """Prepare for a sequence."""
        self._chosen.prepare(sequence)

    def is_worth_waiting(self, decodes: list[Sequence]) -> bool:
        """Return whether drafts are likely."""
        return self._chosen.is_worth_waiting(decodes)

    def propose(self, decodes: list[Sequence]) -> dict[Sequence, Draft]:
        """Return the drafts of a step."""
        return self._chosen.propose(decodes)

    def ended(self, sequence: Sequence) -> None:
        """Forget a sequence."""
        self._chosen.ended(sequence)
