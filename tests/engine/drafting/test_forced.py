"""Drafts from grammars: the tokens that they force, for who can be asked."""

from __future__ import annotations

from engine.drafting.draft import Draft
from engine.drafting.forced import ForcedTokens
from engine.sequences.sequence import Sequence
from engine.sequences.token_constraint import TokenConstraint
from tests.doubles.constraints import Allows, Script
from tests.engine.rigs.hand_driven import sequence_of

VOCAB = 64


def held_to(constraint: TokenConstraint | None) -> Sequence:
    sequence = sequence_of([3, 4])
    sequence.constraint = constraint
    return sequence


def test_forced_tokens_are_drafted_up_to_the_most() -> None:
    sequence = held_to(Script([{5}, {6}, {7}, {8, 9}, {1}], VOCAB))
    drafter = ForcedTokens()
    assert drafter.propose(sequence, 8) == Draft((5, 6, 7), "grammar")
    assert drafter.propose(sequence, 2) == Draft((5, 6), "grammar")
    assert drafter.propose(sequence, 0) is None
    for token in (5, 6, 7):
        sequence.append(token)
    assert drafter.propose(sequence, 8) is None
    sequence.append(9)
    assert drafter.propose(sequence, 8) == Draft((1,), "grammar")


def test_without_a_constraint_nothing_is_forced() -> None:
    assert ForcedTokens().propose(held_to(None), 8) is None
    assert ForcedTokens().propose(held_to(Allows({5}, VOCAB)), 8) is None, "it says nothing of it"


def test_a_constraint_that_is_busy_is_not_asked() -> None:
    sequence = held_to(Script([{5}, {6}], VOCAB))
    assert sequence.constraint is not None
    sequence.constraint.is_busy = True
    assert ForcedTokens().propose(sequence, 8) is None
    sequence.constraint.is_busy = False
    assert ForcedTokens().propose(sequence, 8) == Draft((5, 6), "grammar")
