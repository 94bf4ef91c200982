"""Drafts that a test chooses: right tokens, wrong tokens, or a mixture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from engine.drafting.draft import Draft
from engine.sequences.sequence import Sequence

# Returns the tokens that follow a sequence's known tokens, up to the given number.
Continuation = Callable[[Sequence, int], list[int]]


@dataclass
class ScriptedDrafting:
    """A drafter of the right continuation, in which each token is wrong with a given probability.

    Implements `Drafting`, and records the calls.
    """

    follows: Continuation
    vocab_size: int
    wrong: float = 0.0
    most: int = 5
    fewest: int = 1
    often: float = 1.0  # probability that a sequence gets drafts
    random: Random = field(default_factory=lambda: Random(1))
    prepared: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)

    def prepare(self, sequence: Sequence) -> None:
        """Record the sequence that drafting prepares for."""
        self.prepared.append(sequence.request_id)

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
        """Record the sequence that ended."""
        self.gone.append(sequence.request_id)

    def _perhaps(self, token_id: int) -> int:
        if self.random.random() < self.wrong:
            return (token_id + self.random.randint(1, self.vocab_size - 1)) % self.vocab_size
        return token_id
