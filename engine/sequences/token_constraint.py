"""The interfaces of constraints on the next token, and of the masks that enforce them.

A mask depends on all tokens before it. The forward pass of a step is therefore launched without
sampling, masks are made while the device computes, and then the sampling is launched
(`engine.in_flight.masked_step`). A sequence waits in the queue until its constraint is ready. A row
that verifies drafts needs one mask after each draft. If a mask is missing, only the drafts after it
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

    The engine's thread uses a constraint, except while another thread makes a mask (`is_busy`).
    """

    is_busy: bool = False
    flow: str = ""

    @property
    def is_ready(self) -> bool:
        """True if the grammar has been compiled."""
        return True

    @property
    def has_mask(self) -> bool:
        """True if the next mask is already made, so that `allowed` returns immediately."""
        return False

    @property
    def is_over(self) -> bool:
        """True if nothing but an end of sequence may follow. The sequence then ends."""
        return False

    @property
    def is_behind(self) -> bool:
        """True if the constraint has not followed all tokens of the sequence yet."""
        return False

    def catch_up(self) -> float:
        """Follow the remaining tokens. Return the seconds for which Python's lock was held."""
        return 0.0

    @property
    def error(self) -> EngineError | None:
        """The error that ends the sequence (for example, no token is allowed), or None."""
        return None

    def allowed(self) -> Bitmask:
        """Return the mask of allowed next tokens: ceil(vocabulary / 32) words.

        If no token is allowed, the request fails with `ConstraintUnsatisfied`.
        """
        ...

    def allowed_after(self, drafts: Drafts) -> tuple[Bitmask, ...]:
        """Return the masks of the next token, and of the tokens after the first 1, 2, ... `drafts`.

        The masks are valid until `advance`. At least the first mask is returned. There is no mask
        after a draft that is not allowed or that completes the grammar, nor after a mask that would
        take too long.
        """
        del drafts
        return (self.allowed(),)

    def forced(self) -> Drafts:
        """Return the next tokens as long as only one is allowed, if they are quickly found."""
        return ()

    def advance(self, token_id: int) -> None:
        """Advance by an allowed token of the sequence."""
        ...


class WantedMasks(NamedTuple):
    """A constraint, and the drafts after which further masks are wanted."""

    constraint: TokenConstraint
    drafts: Drafts = ()


class Making(Protocol):
    """An interface to masks that are being made."""

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` for all masks. Constraints with late masks stay `is_busy`."""
        ...


class MaskMaker(Protocol):
    """An interface that makes masks, possibly in other threads."""

    def make(self, wanted: Iterable[WantedMasks]) -> Making:
        """Start to make masks for constraints that are not busy."""
        ...


class MadeOnDemand:
    """A stand-in that makes no masks ahead. Implements `MaskMaker` and `Making`."""

    def make(self, wanted: Iterable[WantedMasks]) -> Making:
        """Make no masks. Each is made when it is read."""
        del wanted
        return self

    def wait(self, seconds: float) -> None:
        """Return immediately, because each mask is made when it is read."""


# A function that makes the constraint of a flow's request, or returns None. Raises EngineError.
ConstraintOf = Callable[[SamplingParams, str], TokenConstraint | None]


# A function that drops the compiled grammars of a flow, or of all flows.
ForgetGrammars = Callable[[str | None], None]


def nothing_kept(flow: str | None) -> None:
    """Do nothing, because there are no compiled grammars."""
    del flow


def unconstrained(sampling: SamplingParams, flow: str) -> None:
    """Reject every grammar with InvalidGrammar."""
    del flow
    if sampling.grammar is not None:
        raise InvalidGrammar("this engine serves no grammars")
