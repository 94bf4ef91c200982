"""Drafts of the tokens that a sequence's grammar forces: of those only one may come.

They are certain to be accepted, so that each saves a step: names of an object's fields, the end of
a word that began as one of few, the marks around a tool's call.

Knows: constraints. Does not know: grammars.
"""

from __future__ import annotations

from engine.drafting.draft import Draft
from engine.sequences.sequence import Sequence


class ForcedTokens:
    """A source of drafts from grammars; implements `Drafter`. It keeps no state."""

    def propose(self, sequence: Sequence, most: int) -> Draft | None:
        """Return the next tokens if their constraint allows no others, or None."""
        constraint = sequence.constraint
        if constraint is None or constraint.is_busy:
            return None
        forced = constraint.forced()[:most]
        return Draft(forced, "grammar") if forced else None

    def ended(self, sequence: Sequence) -> None:
        """Forget nothing."""
