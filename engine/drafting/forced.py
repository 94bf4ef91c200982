"""The drafts of tokens that a sequence's grammar forces: it allows no other token there.

Forced tokens are always accepted, so each saves a step. Examples are the field names of an object
and the delimiters around a tool call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engine.drafting.acceptance import LONGEST_MATCH
from engine.drafting.draft import DraftSource
from engine.sequences.sequence import Sequence
from engine.sequences.token_constraint import TokenConstraint


@dataclass(frozen=True, slots=True)
class ForcedTokens:
    """A source of the tokens that a constraint forces. Implements `Drafter`."""

    constraint: TokenConstraint
    source: ClassVar[DraftSource] = "grammar"
    matched: ClassVar[int] = LONGEST_MATCH

    def draft(self, known: int, most: int) -> tuple[int, ...]:
        """Return the next tokens up to the first position where the constraint allows a choice."""
        del known
        return () if self.constraint.is_busy else self.constraint.forced()[:most]


def forced_tokens(sequence: Sequence) -> ForcedTokens | None:
    """Return a source of the tokens that a sequence's constraint forces, or None."""
    constraint = sequence.constraint
    return None if constraint is None else ForcedTokens(constraint)
