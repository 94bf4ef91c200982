"""Constraints on the next token: a mask for each token, made while the step is computed.

The answer depends on the tokens so far. So a step is launched without it, the values of the step
before are settled, and the masks are made (`MaskMaker`) while the device computes; then the
sampling is launched (`engine.in_flight.masked_step`). Until its constraint is ready, a sequence
waits in the queue, without blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from engine.errors import EngineError, InvalidGrammar
from engine.link.messages import SamplingParams
from engine.step import Bitmask as Bitmask


class TokenConstraint(Protocol):
    """Constraint on the next tokens of one sequence.

    The engine's thread alone uses it, but while it `is_busy`: then who makes its mask does.
    """

    is_busy: bool = False  # its mask is being made
    flow: str = ""  # whose it is; flows have their masks made in turns

    @property
    def is_ready(self) -> bool:
        """True if it can be asked; its grammar may still be compiled."""
        return True

    @property
    def has_mask(self) -> bool:
        """True if `allowed` has its answer at hand."""
        return False

    @property
    def is_over(self) -> bool:
        """True if nothing but the end may follow; the sequence then ends by itself."""
        return False

    @property
    def error(self) -> EngineError | None:
        """Reason why the sequence cannot go on, or None: no constraint, or no token is allowed."""
        return None

    def allowed(self) -> Bitmask:
        """Return the tokens that may be next, ceil(vocabulary / 32) words; may be asked again.

        If none may, or only tokens that the request rules out otherwise, the request fails with
        `ConstraintUnsatisfied`. End-of-sequence tokens count like all others.
        """
        ...

    def advance(self, token_id: int) -> None:
        """Advance by a token of the sequence, which was allowed."""
        ...


class Making(Protocol):
    """Masks that are being made."""

    def wait(self, seconds: float) -> None:
        """Wait until all masks are made, at most `seconds`. Those that are not stay `is_busy`."""
        ...


class MaskMaker(Protocol):
    """Maker of masks, perhaps beside the engine's thread."""

    def make(self, constraints: Iterable[TokenConstraint]) -> Making:
        """Start to make the masks of those that are not busy; `allowed` then has them at hand."""
        ...


class MadeOnDemand:
    """Masks that are made when they are asked for; a `MaskMaker`, and what it makes."""

    def make(self, constraints: Iterable[TokenConstraint]) -> Making:
        """Make nothing yet."""
        del constraints
        return self

    def wait(self, seconds: float) -> None:
        """Return at once: there is nothing to wait for."""


# Makes the constraint that a request of a flow asks for, if any; raises EngineError.
ConstraintOf = Callable[[SamplingParams, str], TokenConstraint | None]


# Drops what is kept of a flow's grammars; of all flows' when it is None.
ForgetGrammars = Callable[[str | None], None]


def nothing_kept(flow: str | None) -> None:
    """Forget nothing: no grammars are kept of any flow."""
    del flow


def unconstrained(sampling: SamplingParams, flow: str) -> None:
    """Reject every constraint with InvalidGrammar."""
    del flow
    if sampling.grammar is not None:
        raise InvalidGrammar("this engine serves no grammars")
