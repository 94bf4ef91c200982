"""Drafts of the tokens that a sequence's grammar forces, by allowing only one token.

Such tokens are always accepted, so each saves a step: names of an object's fields, the end of an
allowed word that its first letters decide, the delimiters around a tool call.

Knows: constraints. Does not know: grammars.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engine.drafting.draft import DraftSource
from engine.sequences.sequence import Sequence
from engine.sequences.token_constraint import TokenConstraint


@dataclass(frozen=True, slots=True)
class ForcedTokens:
    """Source of the tokens that a constraint forces; implements `Drafter`."""

    constraint: TokenConstraint
    source: ClassVar[DraftSource] = "grammar"

    def draft(self, known: int, most: int) -> tuple[int, ...]:
        """Return the next tokens, as far as the constraint allows no other tokens."""
        del known
        return () if self.constraint.is_busy else self.constraint.forced()[:most]


def forced_tokens(sequence: Sequence) -> ForcedTokens | None:
    """Return a source of the tokens that a sequence's constraint forces; None if it has none."""
    constraint = sequence.constraint
    return None if constraint is None else ForcedTokens(constraint)
