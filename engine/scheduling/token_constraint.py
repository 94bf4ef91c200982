"""Which tokens a sequence may sample next: queried for each sampling row, updated by each token.

The answer depends on the tokens so far, so a sequence with a constraint has no row in a step before
the value of its last token is known. With `overlap_scheduling` it is in every second step; others
are in all of them. Until its constraint is ready, a sequence waits in the queue, without blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.errors import EngineError, InvalidGrammar
from engine.link.messages import SamplingParams

# A bit for each token of the vocabulary, from the lowest of the first word on.
Bitmask = npt.NDArray[np.int32]


class TokenConstraint(Protocol):
    """Which tokens one sequence may have next. The engine's thread alone uses it."""

    @property
    def is_ready(self) -> bool:
        """Whether it can be asked; it may still be compiled."""
        return True

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end may follow; the sequence then ends by itself."""
        return False

    @property
    def error(self) -> EngineError | None:
        """Why the sequence cannot go on: it cannot be made, or has just allowed nothing."""
        return None

    def allowed(self) -> Bitmask:
        """The tokens that may be next, ceil(vocabulary / 32) words; may be asked again.

        If none may, or only tokens that the request rules out otherwise, the request fails with
        `ConstraintUnsatisfied`. End-of-sequence tokens count like all others.
        """
        ...

    def advance(self, token_id: int) -> None:
        """The sequence has this token, which was allowed."""
        ...


# Makes the constraint that a request of a flow asks for, if any; raises EngineError.
ConstraintOf = Callable[[SamplingParams, str], TokenConstraint | None]


# Drops what is kept of a flow's grammars; of all flows' when it is None.
ForgetGrammars = Callable[[str | None], None]


def nothing_kept(flow: str | None) -> None:
    """No grammars are kept of any flow."""
    del flow


def unconstrained(sampling: SamplingParams, flow: str) -> None:
    """No request may have a constraint; raises InvalidGrammar."""
    del flow
    if sampling.grammar is not None:
        raise InvalidGrammar("this engine serves no grammars")
