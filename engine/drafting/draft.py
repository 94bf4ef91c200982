"""A draft, and the protocols of its sources and of their choice.

A draft never changes an output: each of its tokens is sampled as without drafts, and the draft
counts as far as it agrees. A wrong one costs time alone.

Knows: token ids, where they come from. Does not know: how a draft is verified (`engine.step`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from engine.sequences.sequence import Sequence

# The sequence's own text; the cached tree below it; earlier answers to other prompts; the request's
# `prediction`; tokens that its grammar forces; the head that the checkpoint brings.
DraftSource = Literal["own", "tree", "answers", "prediction", "grammar", "mtp"]


class Draft(NamedTuple):
    """Tokens that probably follow the last known token of a sequence."""

    token_ids: tuple[int, ...]
    source: DraftSource
    probability: float = 0.5  # probability that a token is accepted after its predecessors


class Drafter(Protocol):
    """One source of drafts for one running sequence."""

    @property
    def source(self) -> DraftSource:
        """The name of the source."""
        ...

    def draft(self, known: int, most: int) -> tuple[int, ...]:
        """Return at most `most` tokens that probably follow the sequence's first `known` tokens.

        These are all that it has, and none is pending; () without a draft.
        """
        ...


# Begins to draft for a sequence that has begun to generate; None: never of this source.
BeginDrafts = Callable[[Sequence], Drafter | None]


class Drafting(Protocol):
    """Choice of the drafts of a step. One owner thread."""

    def is_worth_waiting(self, decodes: list[Sequence]) -> bool:
        """Return whether drafts are likely enough to settle the steps under way first.

        A cheap look: the last token of these sequences may be pending.
        """
        ...

    def propose(self, decodes: list[Sequence]) -> dict[Sequence, Draft]:
        """Return the drafts to be verified in the next step, whose rows are `decodes`.

        Only as long as verifying them pays. No sequence has a pending token.
        """
        ...

    def ended(self, sequence: Sequence) -> None:
        """Forget a sequence, which has ended or was preempted; it still has its lease."""
        ...


class NoDrafts:
    """No drafts at all; implements `Drafting`."""

    def is_worth_waiting(self, decodes: list[Sequence]) -> bool:
        """Return False."""
        del decodes
        return False

    def propose(self, decodes: list[Sequence]) -> dict[Sequence, Draft]:
        """Return no drafts."""
        del decodes
        return {}

    def ended(self, sequence: Sequence) -> None:
        """Forget nothing."""
