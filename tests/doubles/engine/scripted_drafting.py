"""Drafts as a test wants them: right, wrong, or some of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from engine.drafting.draft import Draft
from engine.sequences.sequence import Sequence

# What follows the known tokens of a sequence, and how many of these are wanted at most.
Continuation = Callable[[Sequence, int], list[int]]


@dataclass
class ScriptedDrafting:
    """Drafts the right continuation, each token replaced by another with a probability.

    Implements `Drafting`. Keeps what it is told.
    """

    follows: Continuation
    vocab_size: int
    wrong: float = 0.0
    most: int = 5
    fewest: int = 1
    often: float = 1.0  # probability that a sequence has a draft at all
    random: Random = field(default_factory=lambda: Random(1))
    gone: list[str] = field(default_factory=list)

    def is_worth_waiting(self, decodes: list[Sequence]) -> bool:
        """Return whether drafts are ever made."""
        return bool(decodes) and self.often > 0

    def propose(self, decodes: list[Sequence]) -> dict[Sequence, Draft]:
        """Draft for some of the sequences."""
        assert not any(one.num_pending for one in decodes), "a token's value is not known"
        drafts = {}
        for sequence in decodes:
            if self.random.random() < self.often:
                right = self.follows(sequence, self.random.randint(self.fewest, self.most))
                drafts[sequence] = Draft(tuple(map(self._perhaps, right)), "own")
        return drafts

    def ended(self, sequence: Sequence) -> None:
        """Note who has gone."""
        self.gone.append(sequence.request_id)

    def _perhaps(self, token_id: int) -> int:
        if self.random.random() < self.wrong:
            return (token_id + self.random.randint(1, self.vocab_size - 1)) % self.vocab_size
        return token_id
