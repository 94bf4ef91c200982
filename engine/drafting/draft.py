"""A draft, and the protocols: a source of drafts, and the choice between sources.

A draft never changes an output: every token is sampled as without drafts, and the draft's leading
tokens that equal sampled tokens are accepted. A wrong draft only costs time.

Knows: token ids and their sources. Does not know: how a draft is verified (`engine.step`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from engine.sequences.sequence import Sequence

# Sources in the order of these names: the sequence's own text; the cached tree below its node;
# earlier answers to other prompts; the request's `prediction`; tokens that its grammar forces; the
# checkpoint's draft head.
DraftSource = Literal["own", "tree", "answers", "prediction", "grammar", "mtp"]


class Draft(NamedTuple):
    """Tokens that probably follow the last known token of a sequence."""

    token_ids: tuple[int, ...]
    source: DraftSource
    probability: float = 0.5  # probability that a token is accepted if the tokens before it are


class Drafter(Protocol):
    """One source of drafts for one running sequence."""

    @property
    def source(self) -> DraftSource:
        """The name of the source."""
        ...

    def draft(self, known: int, most: int) -> tuple[int, ...]:
        """Return at most `most` tokens that probably follow the sequence's first `known` tokens.

        The sequence has exactly `known` tokens, and no token is pending. Return () for no draft.
        """
        ...


# Makes a source's drafter for a sequence that begins to generate; None: the source has no drafts.
BeginDrafts = Callable[[Sequence], Drafter | None]


class Drafting(Protocol):
    """Choice of the drafts of a step. Used by one thread only."""

    def begin(self, sequence: Sequence) -> None:
        """Prepare to draft for a sequence whose first token the launched step samples.

        While the device computes, the host has time. Otherwise `propose` prepares.
        """
        ...

    def is_worth_waiting(self, decodes: list[Sequence]) -> bool:
        """Return whether drafts are likely enough to wait until the steps under way are settled.

        The check is cheap; the last tokens of these sequences may be pending.
        """
        ...

    def propose(self, decodes: list[Sequence]) -> dict[Sequence, Draft]:
        """Return the drafts that the next step, whose rows are `decodes`, should verify.

        Drafts are only as long as verifying them pays. No sequence has a pending token.
        """
        ...

    def ended(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended or was preempted; the sequence still has a lease."""
        ...


class NoDrafts:
    """No drafts at all; implements `Drafting`."""

    def begin(self, sequence: Sequence) -> None:
        """Prepare nothing."""
        del sequence

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
