"""Drafts from a request's `prediction`."""

from __future__ import annotations

from engine.drafting.prediction import PredictedText
from tests.engine.drafting.rows import decode, give, row

EXPECTED = list(range(100, 300))


def test_an_answer_as_expected_is_drafted_from_its_first_token() -> None:
    sequence = row([1, 2, 3], 300, prediction=EXPECTED)
    steps, drafted, right = decode(PredictedText(), sequence, EXPECTED)
    assert drafted == right
    assert steps == -(-len(EXPECTED) // 17)


def test_it_is_found_again_after_a_divergence() -> None:
    answer = [*EXPECTED[:50], 7, 8, 9, *EXPECTED[80:]]
    sequence = row([1, 2, 3], 300, prediction=EXPECTED)
    steps, drafted, right = decode(PredictedText(), sequence, answer)
    assert right > 0.85 * drafted
    assert steps < 25


def test_an_answer_that_begins_otherwise_is_looked_for() -> None:
    sequence = row([1, 2, 3], 300, prediction=EXPECTED)
    drafter = PredictedText()
    give(sequence, 7, 8)
    assert drafter.propose(sequence, 4) is None
    give(sequence, *EXPECTED[60:63])
    draft = drafter.propose(sequence, 4)
    assert draft is not None
    assert draft.token_ids == tuple(EXPECTED[63:66]), "as long as its match"


def test_after_its_end_nothing_is_drafted() -> None:
    sequence = row([1, 2, 3], 300, prediction=EXPECTED[:10])
    drafter = PredictedText()
    give(sequence, *EXPECTED[:8])
    draft = drafter.propose(sequence, 16)
    assert draft is not None
    assert draft.token_ids == tuple(EXPECTED[8:10])
    give(sequence, *EXPECTED[8:12])
    assert drafter.propose(sequence, 16) is None


def test_a_request_without_one_has_none() -> None:
    for sequence in (row([1, 2, 3], 8), row([1, 2, 3], 8, prediction=[])):
        give(sequence, 1)
        assert PredictedText().propose(sequence, 4) is None
