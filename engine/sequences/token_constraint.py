"""Constraints on the next token: a mask for each token, made while the step is computed.

A mask depends on all tokens so far. So a step is launched without its sampling, the samples of the
step before are settled, and the masks are made (`MaskMaker`) while the device computes; then the
sampling is launched (`engine.in_flight.masked_step`). Until its constraint is ready, a sequence
waits in the queue, without blocks.

A row that verifies drafts needs a mask after each draft. If a mask is missing, only the drafts
after it are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from engine.errors import EngineError, InvalidGrammar
from engine.link.messages import SamplingParams
from engine.step import Bitmask as Bitmask

Drafts = tuple[int, ...]  # tokens drafted after the known tokens


class TokenConstraint(Protocol):
    """Constraint on the next tokens of one sequence.

    Only the engine's thread uses a constraint, except while it `is_busy`: then only the thread that
    makes masks does.
    """

    is_busy: bool = False  # True while a mask of this constraint is being made
    flow: str = ""  # the sequence's flow; flows have their masks made in turns

    @property
    def is_ready(self) -> bool:
        """True if the constraint can be used; false while its grammar is compiled."""
        return True

    @property
    def has_mask(self) -> bool:
        """True if `allowed` returns without computing."""
        return False

    @property
    def is_over(self) -> bool:
        """True if only an end of sequence may follow; the sequence then ends by itself."""
        return False

    @property
    def is_behind(self) -> bool:
        """True if the constraint has not followed all tokens of the sequence."""
        return False

    def catch_up(self) -> float:
        """Follow the sequence's other tokens; return the seconds that Python's lock was held."""
        return 0.0

    @property
    def error(self) -> EngineError | None:
        """Reason why the sequence cannot continue, such as no allowed token; None if it can."""
        return None

    def allowed(self) -> Bitmask:
        """Return the mask of allowed next tokens, ceil(vocabulary / 32) words.

        Changes no state. If it allows no token that the request allows, the request fails with
        `ConstraintUnsatisfied`. End-of-sequence tokens count like all other tokens.
        """
        ...

    def allowed_after(self, drafts: Drafts) -> tuple[Bitmask, ...]:
        """Return the masks of the next token, and of the tokens after 1, 2... of `drafts`.

        Changes no state; valid until `advance`. Masks made since the last `advance` are returned if
        they fit these drafts; at least the first mask is. No mask is returned after a draft that is
        not allowed or ends the constraint, nor a mask that would take too long to make.
        """
        del drafts
        return (self.allowed(),)

    def forced(self) -> Drafts:
        """Return next tokens that are the only allowed tokens, as far as they are found cheaply."""
        return ()

    def advance(self, token_id: int) -> None:
        """Advance by an allowed token of the sequence."""
        ...


class WantedMasks(NamedTuple):
    """A constraint whose masks are wanted: the next mask, and a mask after each of `drafts`."""

    constraint: TokenConstraint
    drafts: Drafts = ()


class Making(Protocol):
    """Masks that are being made."""

    def wait(self, seconds: float) -> None:
        """Wait until all masks are made, at most `seconds`. Late constraints stay `is_busy`."""
        ...


class MaskMaker(Protocol):
    """Maker of masks, perhaps beside the engine's thread."""

    def make(self, wanted: Iterable[WantedMasks]) -> Making:
        """Start to make masks of constraints that are not busy, for `allowed_after` to return."""
        ...


class MadeOnDemand:
    """Maker of masks on demand; implements `MaskMaker` and `Making`."""

    def make(self, wanted: Iterable[WantedMasks]) -> Making:
        """Return without making masks."""
        del wanted
        return self

    def wait(self, seconds: float) -> None:
        """Return at once: all masks are made on demand."""


# Makes the constraint of a flow's request, or None; raises EngineError.
ConstraintOf = Callable[[SamplingParams, str], TokenConstraint | None]


# Drops the compiled grammars of a flow; None: of all flows.
ForgetGrammars = Callable[[str | None], None]


def nothing_kept(flow: str | None) -> None:
    """Do nothing: no compiled grammars are kept."""
    del flow


def unconstrained(sampling: SamplingParams, flow: str) -> None:
    """Reject every grammar with InvalidGrammar."""
    del flow
    if sampling.grammar is not None:
        raise InvalidGrammar("this engine serves no grammars")
