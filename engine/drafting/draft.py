"""The draft of a sequence's next tokens, and interfaces to the sources and the choice of drafts.

A draft never changes an output. Every token is sampled as if there were no draft. The draft's
tokens are accepted up to the first that differs from the sampled token. A wrong draft only costs
time.

Elsewhere: how a draft is verified (`engine.step`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from engine.sequences.sequence import Sequence

# The sources, in order: the sequence's own text, the cached tree below its node, earlier answers to
# other prompts, the request's `prediction`, tokens that its grammar forces, and the model
# checkpoint's draft head.
DraftSource = Literal["own", "tree", "answers", "prediction", "grammar", "mtp"]


class Draft(NamedTuple):
    """The tokens that a source expects after the last known token of a sequence."""

    token_ids: tuple[int, ...]
    source: DraftSource
    chance: float = 0.5  # chance that all tokens are accepted


class Drafter(Protocol):
    """An interface to a source of drafts for one running sequence."""

    @property
    def source(self) -> DraftSource:
        """The name of the source."""
        ...

    @property
    def matched(self) -> int:
        """The number of the sequence's last tokens that also precede the draft in its source."""
        ...

    def draft(self, known: int, most: int) -> tuple[int, ...]:
        """Return at most `most` tokens that probably follow the sequence's first `known` tokens.

        The sequence has exactly `known` tokens, and no token is pending.
        """
        ...


# A function that makes a source's drafter for a sequence that begins to generate, or returns None.
BeginDrafts = Callable[[Sequence], Drafter | None]


class Drafting(Protocol):
    """An interface to the choice of a step's drafts. Used by one thread only."""

    def prepare(self, sequence: Sequence) -> None:
        """Prepare to draft for a sequence whose tokens the launched step samples.

        The preparation runs while the device computes. Without this call, `propose` makes the
        preparation later.
        """
        ...

    def is_worth_waiting(self, decodes: list[Sequence]) -> bool:
        """Return whether good drafts are likely enough to wait for the running steps' tokens.

        The check is cheap. The last tokens of these sequences may not be sampled yet.
        """
        ...

    def propose(self, decodes: list[Sequence]) -> dict[Sequence, Draft]:
        """Return the drafts that the next step should verify for its rows `decodes`.

        Drafts are cut to the lengths that save the most time. No sequence has a pending token.
        """
        ...

    def ended(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended or was preempted but still has its lease."""
        ...


class NoDrafts:
    """A stand-in that never drafts. Implements `Drafting`."""

    def prepare(self, sequence: Sequence) -> None:
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
