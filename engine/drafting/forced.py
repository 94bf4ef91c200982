"""Drafts of the tokens that a sequence's grammar forces: of those only one may come.

They are certain to be accepted, so that each saves a step: names of an object's fields, the end of
a word that began as one of few, the marks around a tool's call.

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
    """The tokens that a constraint forces; implements `Drafter`."""

    constraint: TokenConstraint
    source: ClassVar[DraftSource] = "grammar"

    def draft(self, known: int, most: int) -> tuple[int, ...]:
        """Return the next tokens if the constraint allows no others."""
        del known
        return () if self.constraint.is_busy else self.constraint.forced()[:most]


def forced_tokens(sequence: Sequence) -> ForcedTokens | None:
    """Return a source of the tokens that the sequence's constraint forces; None without one."""
    constraint = sequence.constraint
    return None if constraint is None else ForcedTokens(constraint)
