"""The constraints on the next token, with a mask for each token.

A mask depends on all tokens so far, so a step's forward pass is launched without its sampling. The
masks are made while the device computes, and the sampling is launched afterwards
(`engine.in_flight.masked_step`). A sequence waits in the queue until its constraint is ready. A row
that verifies drafts needs a mask after each draft. If a mask is missing, only the drafts after it
are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from engine.errors import EngineError, InvalidGrammar
from engine.link.messages import SamplingParams
from engine.step import Bitmask as Bitmask

Drafts = tuple[int, ...]


class TokenConstraint(Protocol):
    """An interface to the constraint on a sequence's next tokens.

    The engine's thread uses a constraint, except while a mask is made (`is_busy`).
    """

    is_busy: bool = False
    flow: str = ""

    @property
    def is_ready(self) -> bool:
        """True unless the grammar is being compiled."""
        return True

    @property
    def has_mask(self) -> bool:
        """True if `allowed` returns without computing."""
        return False

    @property
    def is_over(self) -> bool:
        """True if only an end of sequence may follow. The sequence then ends."""
        return False

    @property
    def is_behind(self) -> bool:
        """True if the constraint has not followed all tokens of the sequence."""
        return False

    def catch_up(self) -> float:
        """Follow the tokens not followed yet. Return the seconds that Python's lock was held."""
        return 0.0

    @property
    def error(self) -> EngineError | None:
        """The error that stops the sequence, such as no allowed token, or None."""
        return None

    def allowed(self) -> Bitmask:
        """Return the mask of allowed next tokens, in ceil(vocabulary / 32) words.

        If no token is allowed, the request fails with `ConstraintUnsatisfied`.
        """
        ...

    def allowed_after(self, drafts: Drafts) -> tuple[Bitmask, ...]:
        """Return the masks of the next token, and of the tokens after 1, 2... of `drafts`.

        The masks are valid until `advance`. At least the first mask is returned. No mask follows a
        draft that is not allowed or ends the constraint. A mask that would take too long is left
        out.
        """
        del drafts
        return (self.allowed(),)

    def forced(self) -> Drafts:
        """Return the next tokens while only one token is allowed, if they are found cheaply."""
        return ()

    def advance(self, token_id: int) -> None:
        """Advance by an allowed token of the sequence."""
        ...


class WantedMasks(NamedTuple):
    """A constraint, and the drafts after which masks are wanted too."""

    constraint: TokenConstraint
    drafts: Drafts = ()


class Making(Protocol):
    """Masks that are being made."""

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` for all masks. Late constraints stay `is_busy`."""
        ...


class MaskMaker(Protocol):
    """An interface that makes masks, perhaps in other threads."""

    def make(self, wanted: Iterable[WantedMasks]) -> Making:
        """Start to make masks of constraints that are not busy."""
        ...


class MadeOnDemand:
    """A maker of masks on demand. Implements `MaskMaker` and `Making`."""

    def make(self, wanted: Iterable[WantedMasks]) -> Making:
        """Return without making masks."""
        del wanted
        return self

    def wait(self, seconds: float) -> None:
        """Return immediately, because masks are made on demand."""


# Makes the constraint of a flow's request, or None. Raises EngineError.
ConstraintOf = Callable[[SamplingParams, str], TokenConstraint | None]


# Drops the compiled grammars of a flow, or of all flows.
ForgetGrammars = Callable[[str | None], None]


def nothing_kept(flow: str | None) -> None:
    """Do nothing, because no compiled grammars are kept."""
    del flow


def unconstrained(sampling: SamplingParams, flow: str) -> None:
    """Reject every grammar with InvalidGrammar."""
    del flow
    if sampling.grammar is not None:
        raise InvalidGrammar("this engine serves no grammars")
