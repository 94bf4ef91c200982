"""The tokens that a grammar forces are drafted. A busy constraint is not asked for them."""

from __future__ import annotations

from engine.drafting.forced import ForcedTokens, forced_tokens
from engine.sequences.token_constraint import TokenConstraint
from tests.doubles.constraints import Allows, Script
from tests.engine.rigs.hand_driven import sequence_of

VOCAB = 64


def forced_by(constraint: TokenConstraint) -> ForcedTokens:
    sequence = sequence_of([3, 4])
    sequence.constraint = constraint
    drafter = forced_tokens(sequence)
    assert drafter is not None
    return drafter


def test_forced_tokens_are_drafted_up_to_the_most() -> None:
    constraint = Script([{5}, {6}, {7}, {8, 9}, {1}], VOCAB)
    drafter = forced_by(constraint)
    assert drafter.draft(2, 8) == (5, 6, 7)
    assert drafter.draft(2, 2) == (5, 6)
    assert drafter.draft(2, 0) == ()
    for token in (5, 6, 7):
        constraint.advance(token)
    assert drafter.draft(5, 8) == ()
    constraint.advance(9)
    assert drafter.draft(6, 8) == (1,)


def test_without_a_constraint_nothing_is_forced() -> None:
    assert forced_tokens(sequence_of([3, 4])) is None
    assert forced_by(Allows({5}, VOCAB)).draft(2, 8) == (), "it says nothing of it"


def test_a_constraint_that_is_busy_is_not_asked() -> None:
    constraint = Script([{5}, {6}], VOCAB)
    drafter = forced_by(constraint)
    constraint.is_busy = True
    assert drafter.draft(2, 8) == ()
    constraint.is_busy = False
    assert drafter.draft(2, 8) == (5, 6)
