"""Drafts from a request's `prediction` begin at the first token, and after each divergence."""

from __future__ import annotations

from engine.drafting.alignment import Alignment
from engine.drafting.prediction import predicted_text
from engine.sequences.sequence import Sequence
from tests.engine.drafting.rows import decode, give, row

EXPECTED = list(range(100, 300))


def following(sequence: Sequence) -> Alignment:
    drafter = predicted_text(sequence)
    assert drafter is not None
    return drafter


def test_an_answer_as_expected_is_drafted_from_its_first_token() -> None:
    sequence = row([1, 2, 3], 300, prediction=EXPECTED)
    steps, drafted, right = decode(following(sequence), sequence, EXPECTED)
    assert drafted == right
    assert steps == -(-len(EXPECTED) // 17)


def test_it_is_found_again_after_a_divergence() -> None:
    answer = [*EXPECTED[:50], 7, 8, 9, *EXPECTED[80:]]
    sequence = row([1, 2, 3], 300, prediction=EXPECTED)
    steps, drafted, right = decode(following(sequence), sequence, answer)
    assert right > 0.85 * drafted
    assert steps < 25


def test_an_answer_that_begins_otherwise_is_looked_for() -> None:
    sequence = row([1, 2, 3], 300, prediction=EXPECTED)
    drafter = following(sequence)
    give(sequence, 7, 8)
    assert drafter.draft(sequence.num_tokens, 4) == ()
    give(sequence, *EXPECTED[60:63])
    assert drafter.draft(sequence.num_tokens, 4) == tuple(EXPECTED[63:67])
    assert drafter.matched == 3


def test_a_text_says_how_many_new_tokens_are_right() -> None:
    for new, right in (
        ([100, 101, 102], 3),
        ([100, 101, 7], 2),
        ([7, 101], 0),
        ([*EXPECTED, 7], 200),
    ):
        sequence = row([1, 2, 3], 300, prediction=EXPECTED)
        drafter = following(sequence)
        give(sequence, *new)
        assert drafter.follow(sequence.num_tokens) == right


def test_after_its_end_nothing_is_drafted() -> None:
    sequence = row([1, 2, 3], 300, prediction=EXPECTED[:10])
    drafter = following(sequence)
    give(sequence, *EXPECTED[:8])
    assert drafter.draft(sequence.num_tokens, 16) == tuple(EXPECTED[8:10])
    give(sequence, *EXPECTED[8:12])
    assert drafter.draft(sequence.num_tokens, 16) == ()


def test_a_request_without_one_has_none() -> None:
    for sequence in (row([1, 2, 3], 8), row([1, 2, 3], 8, prediction=[])):
        assert predicted_text(sequence) is None
